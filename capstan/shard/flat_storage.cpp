#include "capstan/shard/flat_storage.h"

#include <cassert>
#include <cstring>
#include <utility>

#include <ATen/ops/empty.h>

namespace capstan::shard {
namespace {

c10::Storage empty_storage(std::int64_t bytes, c10::Device device) {
  return {c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<std::size_t>(bytes),
      c10::DataPtr(nullptr, device), c10::GetAllocator(device.type()), /*resizable=*/false)};
}

at::Tensor view_of(const c10::Storage& storage, std::int64_t offset_elems, at::IntArrayRef sizes,
                   at::TensorOptions options) {
  at::Tensor view = at::empty({0}, options);
  c10::TensorImpl* const impl = view.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(storage);
  impl->set_storage_offset(offset_elems);
  impl->set_sizes_contiguous(sizes);
  return view;
}

}  // namespace

FlatStorage::FlatStorage(const layout::FlatLayout& layout,
                         const std::vector<std::vector<std::int64_t>>& sizes,
                         at::TensorOptions options)
    : bytes_(layout.padded_elems() * static_cast<std::int64_t>(options.dtype().itemsize())) {
  storage_ = empty_storage(bytes_, options.device());
  flat_ = view_of(storage_, 0, {layout.padded_elems()}, options);
  std::int64_t covered = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const layout::ElemRange slot = layout.slots()[i];
    slots_.push_back(view_of(storage_, slot.begin, sizes[i], options));
    if (slot.begin > covered) {
      gaps_.push_back(view_of(storage_, covered, {slot.begin - covered}, options));
    }
    covered = slot.end;
  }
  if (layout.padded_elems() > covered) {
    gaps_.push_back(view_of(storage_, covered, {layout.padded_elems() - covered}, options));
  }
}

void FlatStorage::attach(c10::DataPtr memory) {
  assert(!attached_);
  storage_.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
  attached_ = true;
}

c10::DataPtr FlatStorage::detach() {
  assert(attached_);
  attached_ = false;
  c10::StorageImpl* const impl = storage_.unsafeGetStorageImpl();
  return impl->set_data_ptr(c10::DataPtr(nullptr, impl->device()));
}

bool FlatStorage::viewed_elsewhere() const {
  return storage_.use_count() > 2 + slots_.size() + gaps_.size();  // itself and flat_
}

void FlatStorage::leave() {
  assert(attached_);
  attached_ = false;
  storage_ = empty_storage(bytes_, storage_.device());
  const auto renew = [this](at::Tensor& view) {
    view = view_of(storage_, view.storage_offset(), view.sizes(), view.options());
  };
  renew(flat_);
  for (at::Tensor& slot : slots_) renew(slot);
  for (at::Tensor& gap : gaps_) renew(gap);
}

at::Tensor FlatStorage::range(layout::ElemRange elems) const {
  return flat_.narrow(0, elems.begin, elems.size());
}

void FlatStorage::zero_padding() {
  for (at::Tensor& gap : gaps_) {
    if (gap.is_cpu()) {  // a few bytes: libtorch's way there costs more
      std::memset(gap.mutable_data_ptr(), 0, gap.nbytes());
    } else {
      gap.zero_();
    }
  }
}

at::Tensor tensor_over(c10::DataPtr memory, std::int64_t elems, at::TensorOptions options) {
  const std::int64_t bytes = elems * static_cast<std::int64_t>(options.dtype().itemsize());
  const c10::Storage storage = empty_storage(bytes, options.device());
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
  return view_of(storage, 0, {elems}, options);
}

}  // namespace capstan::shard

#include "capstan/shard/flat_storage.h"

#include <cassert>
#include <cstring>
#include <utility>

#include "capstan/store/tensor.h"

namespace capstan::shard {
FlatStorage::FlatStorage(const layout::FlatLayout& layout,
                         const std::vector<std::vector<std::int64_t>>& sizes,
                         at::TensorOptions options)
    : bytes_(layout.padded_elems() * static_cast<std::int64_t>(options.dtype().itemsize())) {
  storage_ = store::empty_storage(bytes_, options.device());
  flat_ = store::view_of(storage_, 0, {layout.padded_elems()}, options);
  std::int64_t covered = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const layout::ElemRange slot = layout.slots()[i];
    slots_.push_back(store::view_of(storage_, slot.begin, sizes[i], options));
    if (slot.begin > covered) {
      gaps_.push_back(store::view_of(storage_, covered, {slot.begin - covered}, options));
    }
    covered = slot.end;
  }
  if (layout.padded_elems() > covered) {
    gaps_.push_back(store::view_of(storage_, covered, {layout.padded_elems() - covered}, options));
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
  storage_ = store::empty_storage(bytes_, storage_.device());
  const auto renew = [this](at::Tensor& view) {
    view = store::view_of(storage_, view.storage_offset(), view.sizes(), view.options());
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

}  // namespace capstan::shard

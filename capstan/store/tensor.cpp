#include "capstan/store/tensor.h"

#include <utility>

#include <ATen/ops/empty.h>

namespace capstan::store {

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

at::Tensor tensor_over(c10::DataPtr memory, std::int64_t elems, at::TensorOptions options) {
  const std::int64_t bytes = elems * static_cast<std::int64_t>(options.dtype().itemsize());
  const c10::Storage storage = empty_storage(bytes, options.device());
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
  return view_of(storage, 0, {elems}, options);
}

at::Tensor new_tensor(Pool& pool, std::int64_t elems, at::ScalarType dtype, MemoryKind kind) {
  const auto bytes = elems * static_cast<std::int64_t>(c10::elementSize(dtype));
  return tensor_over(pool.take(bytes, kind), elems, at::TensorOptions(dtype).device(pool.device()));
}

std::span<std::byte> span_of(const at::Tensor& tensor, std::int64_t begin, std::int64_t elems) {
  const auto size = static_cast<std::int64_t>(tensor.itemsize());
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()) + begin * size,
          static_cast<std::size_t>(elems * size)};
}

std::span<std::byte> span_of(const at::Tensor& tensor) {
  return span_of(tensor, 0, tensor.numel());
}

}  // namespace capstan::store

// Tensors over memory of a pool.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include "capstan/store/home.h"
#include "capstan/store/pool.h"

namespace capstan::store {

// Without memory yet.
c10::Storage empty_storage(std::int64_t bytes, c10::Device device);
// Contiguous, from `offset_elems` on.
at::Tensor view_of(const c10::Storage& storage, std::int64_t offset_elems, at::IntArrayRef sizes,
                   at::TensorOptions options);

// A 1-D tensor over `memory`, which it owns.
at::Tensor tensor_over(c10::DataPtr memory, std::int64_t elems, at::TensorOptions options);
// A 1-D tensor in memory of the pool, on its device; the values are arbitrary.
at::Tensor new_tensor(Pool& pool, std::int64_t elems, at::ScalarType dtype, MemoryKind kind);

// The memory of some elements of a 1-D tensor.
std::span<std::byte> span_of(const at::Tensor& tensor, std::int64_t begin, std::int64_t elems);
std::span<std::byte> span_of(const at::Tensor& tensor);

}  // namespace capstan::store

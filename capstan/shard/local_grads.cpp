#include "capstan/shard/local_grads.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "capstan/shard/torch_dtype.h"
#include "capstan/store/tensor.h"

namespace capstan::shard {
namespace {

// libtorch's copy costs a microsecond before the first byte: more than the bytes of a bias or a
// norm do. Gives false where it is not as simple as that.
bool copy_small(const at::Tensor& to, const at::Tensor& from) {
  constexpr std::size_t kSmallBytes = 16 << 10;
  const bool plain = from.layout() == at::kStrided && from.is_cpu() && to.is_cpu() &&
                     from.scalar_type() == to.scalar_type() && from.is_contiguous();
  if (!plain || from.nbytes() > kSmallBytes) return false;
  std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
  return true;
}

}  // namespace

LocalGrads::LocalGrads(const UnitSpec& spec, std::span<const ParamSpec> params, DType accum,
                       store::Pool& pool)
    : pool_(&pool),
      narrow_(spec.layout, slot_sizes(spec, params),
              at::TensorOptions(torch_dtype(spec.dtype)).device(pool.device())),
      filled_(spec.params.size(), 0) {
  if (size_bytes(accum) > size_bytes(spec.dtype)) {
    wide_ =
        std::make_unique<FlatStorage>(spec.layout, slot_sizes(spec, params),
                                      at::TensorOptions(torch_dtype(accum)).device(pool.device()));
  }
}

void LocalGrads::attach() {
  narrow_.attach(pool_->take(narrow_.bytes(), store::MemoryKind::gradients));
}

void LocalGrads::widen() {
  wide_->attach(pool_->take(wide_->bytes(), store::MemoryKind::gradients));
  for (std::size_t i = 0; i < filled_.size(); ++i) {
    const int slot = static_cast<int>(i);
    if (filled_[i] != 0) wide_->slot(slot).copy_(narrow_.slot(slot));
  }
  narrow_.detach();
}

void LocalGrads::put(int slot, const at::Tensor& grad) {
  // libtorch adds a sparse tensor to the wrong place of memory where the other one begins inside of
  // a storage, as slots do.
  if (grad.is_sparse()) return put(slot, grad.to_dense());
  if (empty()) attach();
  char& filled = filled_[static_cast<std::size_t>(slot)];
  if (filled != 0) {
    if (wide_ != nullptr && !widened()) widen();
    storage().slot(slot).add_(grad);
    return;
  }
  filled = 1;
  if (!copy_small(storage().slot(slot), grad)) {
    storage().slot(slot).copy_(grad);
  }
}

const at::Tensor& LocalGrads::complete() {
  if (empty()) attach();
  for (std::size_t i = 0; i < filled_.size(); ++i) {
    if (filled_[i] == 0) storage().slot(static_cast<int>(i)).zero_();
  }
  storage().zero_padding();
  return storage().flat();
}

at::Tensor LocalGrads::take() {
  const at::Tensor& flat = storage().flat();
  const std::int64_t elems = flat.numel();
  const at::TensorOptions options = flat.options();
  at::Tensor taken = store::tensor_over(storage().detach(), elems, options);
  std::fill(filled_.begin(), filled_.end(), 0);
  return taken;
}

void LocalGrads::drop() {
  if (!empty()) storage().detach();
  std::fill(filled_.begin(), filled_.end(), 0);
}

}  // namespace capstan::shard

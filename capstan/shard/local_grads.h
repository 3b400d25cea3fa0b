// One unit's gradients on this rank before they are reduced: a flat buffer in the layout of the
// parameters, filled slot by slot as backward delivers.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/shard/flat_storage.h"
#include "capstan/shard/plan.h"
#include "capstan/store/pool.h"

namespace capstan::shard {

// The buffer exists from the first gradient until take() or drop(). It starts in the unit's dtype;
// the first sum of two gradients widens it to `accum` where that is wider, so a sum is never
// rounded to 16 bits unless the user asked for it.
// Threads: one caller at a time.
class LocalGrads {
 public:
  LocalGrads(const UnitSpec& spec, std::span<const ParamSpec> params, DType accum,
             store::Pool& pool);

  bool empty() const { return !narrow_.attached() && !widened(); }
  // Stored when the slot is empty, else added.
  void put(int slot, const at::Tensor& grad);
  // Empty slots and padding become zero; then the whole buffer is meaningful.
  const at::Tensor& complete();
  // The buffer, padded_elems long, after complete().
  const at::Tensor& flat() const { return storage().flat(); }
  // Gives the memory up, to the caller or to the pool.
  at::Tensor take();
  void drop();

 private:
  bool widened() const { return wide_ != nullptr && wide_->attached(); }
  const FlatStorage& storage() const { return widened() ? *wide_ : narrow_; }
  FlatStorage& storage() { return widened() ? *wide_ : narrow_; }
  void attach();
  void widen();

  store::Pool* pool_;
  FlatStorage narrow_;
  std::unique_ptr<FlatStorage> wide_;  // only where accum is wider than the unit's dtype
  std::vector<char> filled_;
};

}  // namespace capstan::shard

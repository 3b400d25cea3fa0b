#include "capstan/engine/loss.h"

#include "capstan/base/error.h"

namespace capstan::engine {

void check_loss(const at::Tensor& loss, const char* where) {
  if (loss.defined() && loss.numel() == 1 && loss.requires_grad()) return;
  throw ConfigError({.what = "the loss must have one element and require a gradient",
                     .where = where,
                     .fix = "reduce the loss with mean() or sum(), and make sure that it depends "
                            "on trainable parameters"});
}

precision::LossFactor split_factor(double factor, const at::Tensor& loss) {
  return precision::split_factor(factor,
                                 loss.scalar_type() == at::kHalf ? DType::fp16 : DType::fp32);
}

}  // namespace capstan::engine

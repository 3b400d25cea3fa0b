#include "capstan/tensor_parallel/autocast.h"

#include <ATen/autocast_mode.h>

namespace capstan::tensor_parallel {

at::Tensor for_product(const at::Tensor& x) {
  if (!x.defined() || !x.is_floating_point() || x.scalar_type() == at::kDouble) return x;
  const at::DeviceType device = x.device().type();
  if (!at::autocast::is_autocast_enabled(device)) return x;
  return x.to(at::autocast::get_autocast_dtype(device));
}

}  // namespace capstan::tensor_parallel

#include "capstan/recompute/kept_tensor.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/variable.h>

namespace capstan::recompute {

KeptTensor::KeptTensor(const at::Tensor& tensor, bool to_host) : defined_(tensor.defined()) {
  if (!defined_) return;
  requires_grad_ = tensor.requires_grad();
  device_ = tensor.device();
  if (to_host && !tensor.is_cpu()) {
    // Pinned: the copies in and out need not wait for each other's stream.
    const at::Tensor source = tensor.detach();
    in_host_ = at::empty(source.sizes(), source.options().device(at::kCPU).pinned_memory(true));
    in_host_.copy_(source, /*non_blocking=*/true);
  } else {
    in_place_ = torch::autograd::SavedVariable(tensor, /*is_output=*/false);
  }
}

at::Tensor KeptTensor::restore() const {
  if (!defined_) return {};
  at::Tensor leaf = in_host_.defined() ? in_host_.to(device_, /*non_blocking=*/true, /*copy=*/true)
                                       : in_place_.unpack().detach();
  leaf.set_requires_grad(requires_grad_);
  return leaf;
}

}  // namespace capstan::recompute

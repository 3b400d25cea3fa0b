// One input of a checkpointed function, kept until backward on its device or in host memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/saved_variable.h>

namespace capstan::recompute {

class KeptTensor {
 public:
  // `to_host` moves what lies on a device; the copy is ordered on the current stream.
  KeptTensor(const at::Tensor& tensor, bool to_host);

  // As a leaf that collects a gradient if the original took part in one. Throws libtorch's error
  // when the tensor was written to meanwhile.
  at::Tensor restore() const;

 private:
  torch::autograd::SavedVariable in_place_;
  at::Tensor in_host_;  // undefined unless moved
  c10::Device device_ = c10::Device(c10::kCPU);
  bool defined_ = false;
  bool requires_grad_ = false;
};

}  // namespace capstan::recompute

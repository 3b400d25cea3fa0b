// Pinned host tensors that come back after use. Private to comm/mpi.
#pragma once

#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>

namespace capstan::comm {

// Threads: any.
class PinnedPool {
 public:
  // 1-D, as many elements and of the dtype of `like`, in pinned memory of exactly that size.
  at::Tensor take(const at::Tensor& like);
  void give_back(at::Tensor host);

 private:
  std::mutex mutex_;  // guards free_
  std::vector<at::Tensor> free_;
};

}  // namespace capstan::comm

// Receive buffers that come back: after the first step no collective allocates.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>

namespace capstan::comm {

// Owns:    the buffers that are not in use.
// Threads: any.
class BufferPool {
 public:
  // 1-D, `elems` of `like`'s dtype on its device. Contents are whatever was there.
  at::Tensor take(const at::Tensor& like, std::int64_t elems);
  void give_back(at::Tensor buffer);
  std::int64_t made() const;

 private:
  mutable std::mutex mutex_;  // guards the rest
  std::vector<at::Tensor> free_;
  std::int64_t made_ = 0;
};

}  // namespace capstan::comm

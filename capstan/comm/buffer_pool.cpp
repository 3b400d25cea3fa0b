#include "capstan/comm/buffer_pool.h"

#include <algorithm>

#include <ATen/ops/empty.h>

namespace capstan::comm {

at::Tensor BufferPool::take(const at::Tensor& like, std::int64_t elems) {
  {
    const std::lock_guard lock(mutex_);
    const auto fits = [&](const at::Tensor& buffer) {
      return buffer.numel() == elems && buffer.scalar_type() == like.scalar_type() &&
             buffer.device() == like.device();
    };
    const auto found = std::ranges::find_if(free_, fits);
    if (found != free_.end()) {
      at::Tensor buffer = std::move(*found);
      free_.erase(found);
      return buffer;
    }
    ++made_;
  }
  return at::empty({elems}, like.options().requires_grad(false));
}

std::int64_t BufferPool::made() const {
  const std::lock_guard lock(mutex_);
  return made_;
}

void BufferPool::give_back(at::Tensor buffer) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(buffer));
}

}  // namespace capstan::comm

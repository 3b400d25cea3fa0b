#include "capstan/sequence_parallel/mean.h"

#include <ATen/Functions.h>

namespace capstan::sequence_parallel {

at::Tensor share_of_mean(const at::Tensor& sum, const at::Tensor& count, const GroupPtr& group) {
  const at::Tensor all = count.detach().to(at::kLong).reshape({1}).clone();
  group->all_reduce(all, "positions").wait();
  return sum / all.squeeze(0);
}

}  // namespace capstan::sequence_parallel

#include "capstan/comm/numbers.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

namespace capstan::comm {

std::vector<std::int64_t> from_all_ranks(Group& group, c10::Device device, std::int64_t mine,
                                         std::string_view label) {
  if (group.size() == 1) return {mine};
  const at::TensorOptions options = at::TensorOptions(at::kLong).device(device);
  at::Tensor all = at::empty({group.size()}, options);
  group.all_gather(all, at::full({1}, mine, options), label).wait();
  all = all.cpu();
  const auto* const values = all.const_data_ptr<std::int64_t>();
  return {values, values + group.size()};
}

}  // namespace capstan::comm

#include "capstan/tensor_parallel/attention.h"

#include <algorithm>
#include <optional>
#include <vector>

#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>

#include "capstan/tensor_parallel/collectives.h"
#include "capstan/tensor_parallel/function_state.h"
#include "capstan/tensor_parallel/linear.h"
#include "capstan/tensor_parallel/own_random.h"

namespace capstan::tensor_parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SharedKeys {
  comm::Group* group;
  std::int64_t dim;
  HeadCut heads;
};

// Sums over all ranks of a buffer for all key heads, of which there are fewer than ranks.
class ShareKeys : public torch::autograd::Function<ShareKeys> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& parameter,
                            const SharedKeys& shared) {
    remember(*context, shared);
    return parameter;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto [group, dim, heads] = remembered<SharedKeys>(*context);
    const at::Tensor& mine = gradients[0];
    std::vector<std::int64_t> shape = mine.sizes().vec();
    shape[static_cast<std::size_t>(dim)] = heads.all.key * heads.all.width;
    at::Tensor all = at::zeros(shape, mine.options());
    const auto own = [&](const at::Tensor& whole) {
      return whole.narrow(dim, heads.key.begin * heads.all.width,
                          heads.key.size() * heads.all.width);
    };
    own(all).copy_(mine);
    return {own(sum(*group, all)).contiguous(), at::Tensor()};
  }
};

// [batch, tokens, heads x width] -> [batch, heads, tokens, width]
at::Tensor by_head(const at::Tensor& x, std::int64_t heads, std::int64_t width) {
  return x.view({x.size(0), x.size(1), heads, width}).transpose(1, 2);
}

// Each key head as often as query heads look at it. Not by index: its gradient would be added in
// an order of the device's choice.
at::Tensor for_queries(const at::Tensor& keys, const std::vector<std::int64_t>& counts) {
  if (std::ranges::all_of(counts, [](std::int64_t count) { return count == 1; })) return keys;
  std::vector<at::Tensor> each;
  for (std::int64_t head = 0; head < keys.size(1); ++head) {
    each.push_back(
        keys.narrow(1, head, 1).expand({-1, counts[static_cast<std::size_t>(head)], -1, -1}));
  }
  return at::cat(each, 1);
}

at::Tensor joined(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
  return a.defined() ? at::cat({a, b, c}) : at::Tensor();
}

}  // namespace

at::Tensor share_keys(comm::Group& group, const at::Tensor& parameter, std::int64_t dim,
                      const HeadCut& heads) {
  if (!heads.keys_shared || !parameter.defined()) return parameter;
  return ShareKeys::apply(parameter, SharedKeys{&group, dim, heads});
}

at::Tensor attend(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                  const HeadCut& heads, const AttentionOptions& options) {
  const std::int64_t width = heads.all.width;
  const std::vector<std::int64_t> counts = heads.queries_per_key();
  const at::Tensor mixed = at::scaled_dot_product_attention(
      by_head(query, heads.query.size(), width),
      for_queries(by_head(keys, heads.key.size(), width), counts),
      for_queries(by_head(values, heads.key.size(), width), counts), std::nullopt, options.dropout,
      options.causal);
  return mixed.transpose(1, 2).reshape(query.sizes());
}

at::Tensor attention(const Region& region, const at::Tensor& x, const AttentionWeights& weights,
                     const HeadCut& heads, const AttentionOptions& options) {
  comm::Group& group = *region.group;
  const auto shared = [&](const at::Tensor& parameter) {
    return share_keys(group, parameter, 0, heads);
  };
  const at::Tensor qkv = column_linear(
      region, x, joined(weights.query, shared(weights.key), shared(weights.value)),
      joined(weights.query_bias, shared(weights.key_bias), shared(weights.value_bias)));
  const std::int64_t keys = heads.key.size() * heads.all.width;
  const std::vector<at::Tensor> parts =
      qkv.split_with_sizes({heads.query.size() * heads.all.width, keys, keys}, /*dim=*/2);
  std::optional<OwnRandom> own;
  if (options.dropout > 0) own.emplace(x.device(), group.rank());
  const at::Tensor mixed = attend(parts[0], parts[1], parts[2], heads, options);
  own.reset();
  return row_linear(region, mixed, weights.out, weights.out_bias);
}

}  // namespace capstan::tensor_parallel

#include "capstan/tensor_parallel/linear.h"

#include <optional>

#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include "capstan/tensor_parallel/autocast.h"
#include "capstan/tensor_parallel/collectives.h"
#include "capstan/tensor_parallel/function_state.h"
#include "capstan/tensor_parallel/operators.h"

namespace capstan::tensor_parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor as_rows(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

at::Tensor input_gradient(const at::Tensor& gradient, const at::Tensor& weight) {
  std::vector<std::int64_t> shape = gradient.sizes().vec();
  shape.back() = weight.size(1);
  return at::mm(as_rows(gradient), weight).view(shape);
}

at::Tensor weight_gradient(const at::Tensor& gradient, const at::Tensor& x) {
  return at::mm(as_rows(gradient).t(), as_rows(x));
}

struct ColumnState {
  Region region;
  bool has_bias;
};

class ColumnLinear : public torch::autograd::Function<ColumnLinear> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const Region& region) {
    remember(*context, ColumnState{region, bias.has_value()});
    // This rank's part of the sequence only: backward gathers it again.
    context->save_for_backward({x, weight});
    const at::Tensor whole =
        region.sequence_dim ? gather(*region.group, x, *region.sequence_dim) : x;
    return at::linear(whole, weight, bias);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto [region, has_bias] = remembered<ColumnState>(*context);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& gradient = gradients[0];
    const bool for_x = context->needs_input_grad(0);
    const bool for_weight = context->needs_input_grad(1);

    std::optional<PendingTensor> whole_x;
    if (for_weight && region.sequence_dim) {
      whole_x.emplace(start_gather(*region.group, saved[0], *region.sequence_dim));
    }
    std::optional<PendingTensor> sum_for_x;
    if (for_x) {
      const at::Tensor mine = input_gradient(gradient, saved[1]);
      sum_for_x.emplace(region.sequence_dim
                            ? start_reduce_scatter(*region.group, mine, *region.sequence_dim)
                            : start_sum(*region.group, mine));
    }
    variable_list result(4);
    if (for_weight) result[1] = weight_gradient(gradient, whole_x ? whole_x->wait() : saved[0]);
    if (has_bias && context->needs_input_grad(2)) result[2] = as_rows(gradient).sum(0);
    if (for_x) result[0] = sum_for_x->wait();
    return result;
  }
};

class RowProduct : public torch::autograd::Function<RowProduct> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const Region& region) {
    remember(*context, region);
    context->save_for_backward({x, weight});
    const at::Tensor mine = at::linear(x, weight);
    return region.sequence_dim ? reduce_scatter(*region.group, mine, *region.sequence_dim)
                               : sum(*region.group, mine);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto region = remembered<Region>(*context);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor gradient = region.sequence_dim
                                    ? gather(*region.group, gradients[0], *region.sequence_dim)
                                    : gradients[0];
    variable_list result(3);
    if (context->needs_input_grad(0)) result[0] = input_gradient(gradient, saved[1]);
    if (context->needs_input_grad(1)) result[1] = weight_gradient(gradient, saved[0]);
    return result;
  }
};

}  // namespace

at::Tensor column_linear(const Region& region, const at::Tensor& x, const at::Tensor& weight,
                         const at::Tensor& bias) {
  const std::optional<at::Tensor> added =
      bias.defined() ? std::optional(for_product(bias)) : std::nullopt;
  if (region.group->size() == 1) return at::linear(x, weight, added);
  return ColumnLinear::apply(for_product(x), for_product(weight), added, region);
}

at::Tensor row_linear(const Region& region, const at::Tensor& x, const at::Tensor& weight,
                      const at::Tensor& bias) {
  if (region.group->size() == 1) {
    return at::linear(x, weight, bias.defined() ? std::optional(bias) : std::nullopt);
  }
  const at::Tensor product = RowProduct::apply(for_product(x), for_product(weight), region);
  return bias.defined() ? product + outside(region, for_product(bias)) : product;
}

}  // namespace capstan::tensor_parallel

#include "capstan/tensor_parallel/cross_entropy.h"

#include <limits>
#include <vector>

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>

#include "capstan/base/error.h"
#include "capstan/tensor_parallel/collectives.h"
#include "capstan/tensor_parallel/function_state.h"

namespace capstan::tensor_parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LossState {
  comm::Group* group;
  VocabCut cut;
  CrossEntropyOptions options;
};

at::Tensor used_logits(const at::Tensor& logits, const VocabCut& cut) {
  return logits.narrow(1, 0, cut.used_rows()).to(at::kFloat);
}

// Where targets are in this rank's columns: [n, 1] each, with column 0 for those of other ranks.
struct LocalTargets {
  at::Tensor here;
  at::Tensor column;
};

LocalTargets local_targets(const at::Tensor& targets, const VocabCut& cut) {
  const std::int64_t begin = cut.rows.begin;
  const at::Tensor here =
      targets.ge(begin).logical_and_(targets.lt(begin + cut.used_rows())).unsqueeze(1);
  return {here, (targets - begin).unsqueeze(1).masked_fill_(here.logical_not(), 0)};
}

void refuse_targets(const at::Tensor& unknown, const VocabCut& cut) {
  if (!unknown.is_cpu() || !unknown.any().item<bool>()) return;
  throw ConfigError(
      {.what = "a target is none of the classes",
       .where = "cross_entropy",
       .fix = fmt::format("give numbers from 0 to {}, or that of targets to leave out",
                          cut.used - 1)});
}

// Of each row, of all ranks: [ranks, 2 or 3, n]: the logarithm of the sum of this rank's
// exponentials, the target's logit or 0, the sum of logits.
at::Tensor row_figures(const LossState& state, const at::Tensor& logits,
                       const at::Tensor& targets) {
  const at::Tensor x = used_logits(logits, state.cut);
  at::Tensor picked = at::zeros({x.size(0)}, x.options());
  if (x.size(1) > 0) {
    const LocalTargets local = local_targets(targets, state.cut);
    picked = x.gather(1, local.column).masked_fill_(local.here.logical_not(), 0).squeeze(1);
  }
  std::vector<at::Tensor> figures = {at::logsumexp(x, 1), picked};
  if (state.options.label_smoothing > 0) figures.push_back(x.sum(1));
  return gather(*state.group, at::stack(figures).unsqueeze(0), 0);
}

class CrossEntropy : public torch::autograd::Function<CrossEntropy> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits,
                            const at::Tensor& targets, const LossState& state) {
    const double smoothing = state.options.label_smoothing;
    const at::Tensor left_out = targets.eq(state.options.ignored);
    const at::Tensor unknown =
        targets.lt(0).logical_or_(targets.ge(state.cut.used)).logical_and_(left_out.logical_not());
    refuse_targets(unknown, state.cut);
    const at::Tensor figures = row_figures(state, logits, targets);
    const at::Tensor log_sum = at::logsumexp(figures.select(1, 0), 0);
    at::Tensor losses = log_sum - figures.select(1, 1).sum(0);
    if (smoothing > 0) {
      const at::Tensor mean = figures.select(1, 2).sum(0) / static_cast<double>(state.cut.used);
      losses = losses * (1 - smoothing) + (log_sum - mean) * smoothing;
    }
    losses = losses.masked_fill(left_out, 0)
                 .masked_fill_(unknown, std::numeric_limits<float>::quiet_NaN());
    const at::Tensor counted = left_out.logical_not().sum();
    remember(*context, state);
    context->save_for_backward({logits, targets, log_sum, counted});
    return losses.sum() / counted;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto state = remembered<LossState>(*context);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& logits = saved[0];
    const at::Tensor& targets = saved[1];
    const double smoothing = state.options.label_smoothing;
    at::Tensor slope = used_logits(logits, state.cut).sub(saved[2].unsqueeze(1)).exp_();
    if (slope.size(1) > 0) {
      const LocalTargets local = local_targets(targets, state.cut);
      slope.scatter_add_(1, local.column, local.here.to(at::kFloat).mul_(smoothing - 1));
    }
    if (smoothing > 0) slope.sub_(smoothing / static_cast<double>(state.cut.used));
    const at::Tensor weight =
        (gradients[0] / saved[3]).masked_fill(targets.eq(state.options.ignored), 0);
    slope = slope.mul_(weight.unsqueeze(1)).to(logits.scalar_type());
    const std::int64_t unused = logits.size(1) - slope.size(1);
    if (unused > 0) slope = at::constant_pad_nd(slope, {0, unused});
    return {slope, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor cross_entropy(comm::Group& group, const at::Tensor& logits, const at::Tensor& targets,
                         const VocabCut& cut, const CrossEntropyOptions& options) {
  if (logits.dim() != 2 || logits.size(1) != cut.rows.size() || targets.dim() != 1 ||
      targets.size(0) != logits.size(0)) {
    throw ConfigError(
        {.what = fmt::format("logits of shape [{}] and targets of shape [{}] do not fit",
                             fmt::join(logits.sizes(), ", "), fmt::join(targets.sizes(), ", ")),
         .where = "cross_entropy",
         .fix = fmt::format("give [n, {}] and [n]", cut.rows.size())});
  }
  return CrossEntropy::apply(logits, targets, LossState{&group, cut, options});
}

}  // namespace capstan::tensor_parallel

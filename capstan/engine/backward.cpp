#include "capstan/engine/backward.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include "capstan/base/error.h"
#include "capstan/engine/guarded.h"
#include "capstan/engine/loss.h"
#include "capstan/engine/settings.h"

namespace capstan::engine {

Backward::Backward(const Common& common, shard::Hooks& hooks) : common_(common), hooks_(hooks) {
  common_.scale.after_sum =
      averaging(common.options.comm, common.mesh.mesh().size(layout::kDataAxes)).after_sum;
  change_no_sync(0);
}

void Backward::run(const at::Tensor& loss, const BackwardOptions& how) {
  check_loss(loss, "Engine::backward");
  common_.monitoring.add_loss(loss, how.average_accumulation);
  differentiate({loss}, {at::Tensor()}, how);
}

void Backward::run(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& gradients,
                   const BackwardOptions& how) {
  check_outputs(outputs, gradients);
  differentiate(outputs, gradients, how);
}

double Backward::factor_of(const BackwardOptions& how) const {
  if (how.already_scaled) return 1;
  const double scale = common_.run.loss_scale.scale;
  if (!how.average_accumulation) return scale;
  return scale * (1.0 / static_cast<double>(common_.options.batch.accumulation_steps));
}

void Backward::timed(const std::function<void()>& body) {
  common_.log.phase_ended(Phase::forward, common_.sharded.places().device_ledger());
  guarded(common_, Phase::backward, body);
  common_.log.phase_ended(Phase::backward, common_.sharded.places().device_ledger());
}

void Backward::reducing(double grad_factor, const std::function<void()>& body) {
  hooks_.begin_backward(/*sync=*/no_sync_depth_ == 0, grad_factor);
  try {
    body();
  } catch (...) {
    hooks_.abandon_backward();
    throw;
  }
  hooks_.end_backward();
}

void Backward::differentiate(const std::vector<at::Tensor>& outputs,
                             const std::vector<at::Tensor>& gradients, const BackwardOptions& how) {
  common_.scale.loss_scale = common_.run.loss_scale.scale;
  common_.scale.boundary = how.boundary;
  const precision::LossFactor factor = split_factor(factor_of(how), outputs, gradients);
  timed([&] {
    reducing(factor.of_gradients, [&] {
      if (outputs.empty()) return;
      torch::autograd::backward(outputs, seeds(outputs, gradients, factor.of_loss),
                                how.retain_graph);
    });
  });
  common_.scale.boundary.reset();
  if (common_.options.shard.log_trace_changes) {
    common_.log.trace_surprises(common_.sharded.trace().surprises());
  }
}

std::optional<Backward::Half> Backward::half(const std::vector<at::Tensor>& outputs,
                                             const std::vector<at::Tensor>& inputs) const {
  if (common_.sharded.settings().policy.shards_params()) return std::nullopt;
  std::optional<pipeline::SplitBackward> graph = pipeline::SplitBackward::of(outputs, inputs);
  if (!graph ||
      !hooks_.all_accumulators([&](torch::autograd::Node* node) { return graph->ends_at(node); })) {
    return std::nullopt;
  }
  return Half{.graph = *std::move(graph)};
}

std::vector<at::Tensor> Backward::run_inputs(Half& half, const std::vector<at::Tensor>& outputs,
                                             const std::vector<at::Tensor>& gradients,
                                             const BackwardOptions& how) {
  check_outputs(outputs, gradients);
  common_.scale.loss_scale = common_.run.loss_scale.scale;
  const precision::LossFactor factor = split_factor(factor_of(how), outputs, gradients);
  half.grad_factor = factor.of_gradients;
  std::vector<at::Tensor> found;
  timed([&] {
    hooks_.begin_inputs();
    try {
      found = half.graph.inputs(seeds(outputs, gradients, factor.of_loss));
    } catch (...) {
      hooks_.abandon_backward();
      throw;
    }
    hooks_.end_inputs();
  });
  return found;
}

void Backward::run_weights(Half half, const BackwardOptions& how) {
  common_.scale.boundary = how.boundary;
  timed([&] { reducing(half.grad_factor, [&] { half.graph.weights(); }); });
  common_.scale.boundary.reset();
}

double Backward::rest_of_scale(const at::Tensor& loss, const BackwardOptions& how) const {
  return split_factor(factor_of(how), {loss}).of_gradients;
}

void Backward::change_no_sync(int by) {
  no_sync_depth_ += by;
  const Options& options = common_.options;
  const bool scales = options.precision.scales_loss() && !plain_allowed_;
  hooks_.set_foreign_backward(
      {.sync = no_sync_depth_ == 0,
       .grad_factor = plain_factor_ / static_cast<double>(options.batch.accumulation_steps),
       .refusal = scales ? "call engine.backward(loss): with fp16 the loss must be scaled" : ""});
}

void Backward::expect_plain(bool allowed) {
  plain_allowed_ = allowed;
  plain_factor_ = 1;
  if (allowed) common_.scale.loss_scale = 1;
  change_no_sync(0);
}

at::Tensor Backward::scale(const at::Tensor& loss) {
  check_loss(loss, "Engine::scale");
  common_.monitoring.add_loss(loss, /*averaged=*/true);
  const double loss_scale = common_.run.loss_scale.scale;
  const precision::LossFactor factor = split_factor(loss_scale, {loss});
  plain_allowed_ = true;
  plain_factor_ = factor.of_gradients;
  common_.scale.loss_scale = loss_scale;
  change_no_sync(0);
  return loss.to(c10::promoteTypes(loss.scalar_type(), at::kFloat)) * factor.of_loss;
}

void Backward::take_given() {
  shard::ShardedModel& sharded = common_.sharded;
  const std::vector<int> given = hooks_.given_gradients();
  if (sharded.gradients().reducer().began() && !given.empty()) {
    throw ConfigError(
        {.what = fmt::format("a gradient was put into '{}' after backward(), which would be lost",
                             sharded.plan().params[static_cast<std::size_t>(given[0])].name),
         .where = "Engine::step",
         .fix = "set gradients before backward(), which adds to them, or with set_gradient() "
                "(in Python safe_set_full_grad()) after it"});
  }
  if (sharded.gradients().reducer().began() || sharded.step_order().empty()) return;
  if (given.empty()) {
    throw ConfigError({.what = "step() was called without a backward since the last step: there is "
                               "no gradient to apply",
                       .where = "Engine::step",
                       .fix = "call backward(loss) for every micro-batch before step()"});
  }
  common_.scale.loss_scale = common_.run.loss_scale.scale;
  hooks_.begin_backward(/*sync=*/true);
  hooks_.take_gradients(given);
  hooks_.end_backward();
}

}  // namespace capstan::engine

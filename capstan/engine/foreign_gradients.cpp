// Gradients that come by other ways than Engine::backward(): a plain backward of the program's, or
// gradients that it has put into its parameters.
#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/engine/engine_state.h"
#include "capstan/engine/loss.h"

namespace capstan::engine {

void EngineState::change_no_sync(int by) {
  no_sync_depth_ += by;
  const bool scales = options.precision.scales_loss() && !foreign_allowed_;
  hooks_->set_foreign_backward(
      {.sync = no_sync_depth_ == 0,
       .grad_factor = foreign_factor_ / static_cast<double>(options.batch.accumulation_steps),
       .refusal = scales ? "call engine.backward(loss): with fp16 the loss must be scaled" : ""});
}

void EngineState::expect_backward(bool allowed) {
  foreign_allowed_ = allowed;
  foreign_factor_ = 1;
  if (allowed) backward_scale_ = 1;
  change_no_sync(0);
}

at::Tensor EngineState::scale(const at::Tensor& loss) {
  check_loss(loss, "Engine::scale");
  const precision::LossFactor factor = split_factor(loss_scale.scale, loss);
  foreign_allowed_ = true;
  foreign_factor_ = factor.of_gradients;
  backward_scale_ = loss_scale.scale;
  change_no_sync(0);
  return loss.to(c10::promoteTypes(loss.scalar_type(), at::kFloat)) * factor.of_loss;
}

// A step needs gradients: those of a backward, or those that the program has put into its
// parameters instead of one. When this throws, nothing has happened and the group lives.
void EngineState::look_at_gradients() {
  const std::vector<int> given = hooks_->given_gradients();
  if (sharded->gradients().reducer().began() && !given.empty()) {
    throw ConfigError(
        {.what = fmt::format("a gradient was put into '{}' after backward(), which would be lost",
                             sharded->plan().params[static_cast<std::size_t>(given[0])].name),
         .where = "Engine::step",
         .fix = "set gradients before backward(), which adds to them, or with set_gradient() "
                "(in Python safe_set_full_grad()) after it"});
  }
  if (sharded->gradients().reducer().began() || sharded->step_order().empty()) return;
  if (given.empty()) {
    throw ConfigError({.what = "step() was called without a backward since the last step: there is "
                               "no gradient to apply",
                       .where = "Engine::step",
                       .fix = "call backward(loss) for every micro-batch before step()"});
  }
  backward_scale_ = loss_scale.scale;
  hooks_->begin_backward(/*sync=*/true);
  hooks_->take_gradients(given);
  hooks_->end_backward();
}

}  // namespace capstan::engine

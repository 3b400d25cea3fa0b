#include "capstan/engine/torch_updater.h"

#include <utility>

#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include "capstan/base/error.h"

namespace capstan::engine {

TorchUpdater::TorchUpdater(const OptimizerFactory& factory, shard::ShardedModel& model) {
  std::vector<at::Tensor> tensors;
  for (const int unit : model.step_order()) {
    const shard::UnitStates& states = model.states(unit);
    for (const layout::SlotPiece& piece : states.owned.pieces) {
      at::Tensor values =
          states.master.narrow(0, piece.in_shard.begin, piece.in_shard.size()).detach();
      tensors.push_back(values);
      pieces_.push_back({unit, piece.in_shard, std::move(values)});
    }
  }
  optimizer_ = factory(std::move(tensors));
  const bool whole_only = dynamic_cast<torch::optim::LBFGS*>(optimizer_.get()) != nullptr;
  if (whole_only && model.settings().policy.shards_optimizer()) {
    throw ConfigError({.what = "LBFGS works on whole parameters, but its state would be sharded",
                       .where = "optimizer",
                       .fix = "use stage 0, or an element-wise optimizer such as AdamW"});
  }
}

TorchUpdater::~TorchUpdater() = default;

void TorchUpdater::update(shard::ShardedModel& model, const UpdateScalars& scalars) {
  for (torch::optim::OptimizerParamGroup& group : optimizer_->param_groups()) {
    if (!scalars.lr.empty()) group.options().set_lr(scalars.lr.front());
  }
  int gathered = -1;
  at::Tensor grads;
  for (Piece& piece : pieces_) {
    if (piece.unit != gathered) {
      grads = model.owned_gradient(piece.unit);
      gathered = piece.unit;
    }
    // The gradient in the master's dtype; a copy, because the sum must stay as it is.
    piece.values.mutable_grad() = grads.narrow(0, piece.range.begin, piece.range.size())
                                      .to(piece.values.scalar_type())
                                      .mul(scalars.grad_factor);
  }
  optimizer_->step();
  for (Piece& piece : pieces_) piece.values.mutable_grad().reset();
  for (const int unit : model.step_order()) {
    shard::UnitStates& states = model.states(unit);
    if (!states.master_is_params()) states.params.copy_(states.master);
    model.publish(unit);
  }
  model.finish_updates();
}

}  // namespace capstan::engine

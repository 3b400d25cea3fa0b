#include "capstan/engine/torch_updater.h"

#include <utility>

#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include "capstan/base/error.h"

namespace capstan::engine {
namespace {

// Of a slot piece: the model's own parameter where that is the master, in its shape where whole.
ParamPiece make_piece(shard::ShardedModel& model, int unit, const layout::SlotPiece& piece) {
  const shard::UnitSpec& spec = model.plan().units[static_cast<std::size_t>(unit)];
  const shard::UnitStates& states = model.states(unit);
  const int param = spec.params[static_cast<std::size_t>(piece.slot)];
  const shard::ParamSpec& of = model.plan().params[static_cast<std::size_t>(param)];
  const bool whole = piece.in_shard.size() == of.numel();
  const bool sharded = model.settings().policy.shards_optimizer() && model.group().size() > 1;
  const bool stays = states.master_is_params() && model.unit(unit).keeps_whole();
  if (whole && stays && !sharded) return {param, model.unit(unit).param(piece.slot), true};
  at::Tensor values = states.master.narrow(0, piece.in_shard.begin, piece.in_shard.size()).detach();
  if (whole) values = values.view(of.sizes);
  return {param, std::move(values), whole};
}

}  // namespace

PieceUpdater::PieceUpdater(const StepFactory& factory, shard::ShardedModel& model) {
  std::vector<ParamPiece> given;
  for (const int unit : model.step_order()) {
    for (const layout::SlotPiece& piece : model.states(unit).owned.pieces) {
      given.push_back(make_piece(model, unit, piece));
      pieces_.push_back({unit, piece.in_shard, given.back().values});
    }
  }
  step_ = factory(given);
}

void PieceUpdater::update(shard::ShardedModel& model, const UpdateScalars& scalars) {
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
                                      .mul(scalars.grad_factor)
                                      .view(piece.values.sizes());
  }
  step_(scalars);
  for (Piece& piece : pieces_) piece.values.mutable_grad().reset();
  for (const int unit : model.step_order()) {
    shard::UnitStates& states = model.states(unit);
    if (!states.master_is_params()) states.params.copy_(states.master);
    model.publish(unit);
  }
  model.finish_updates();
}

std::unique_ptr<Updater> make_torch_updater(const OptimizerFactory& factory,
                                            shard::ShardedModel& model) {
  const bool sharded = model.settings().policy.shards_optimizer();
  const auto make = [&](const std::vector<ParamPiece>& pieces) -> StepFunction {
    std::vector<at::Tensor> tensors;
    for (const ParamPiece& piece : pieces) tensors.push_back(piece.values);
    const std::shared_ptr<torch::optim::Optimizer> optimizer = factory(std::move(tensors));
    if (sharded && dynamic_cast<torch::optim::LBFGS*>(optimizer.get()) != nullptr) {
      throw ConfigError({.what = "LBFGS works on whole parameters, but its state would be sharded",
                         .where = "optimizer",
                         .fix = "use stage 0, or an element-wise optimizer such as AdamW"});
    }
    return [optimizer](const UpdateScalars& scalars) {
      for (torch::optim::OptimizerParamGroup& group : optimizer->param_groups()) {
        if (!scalars.lr.empty()) group.options().set_lr(scalars.lr.front());
      }
      optimizer->step();
    };
  };
  return std::make_unique<PieceUpdater>(make, model);
}

}  // namespace capstan::engine

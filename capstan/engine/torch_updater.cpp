#include "capstan/engine/torch_updater.h"

#include <utility>

#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include "capstan/base/error.h"
#include "capstan/engine/torch_states.h"
#include "capstan/profile/event_clock.h"

namespace capstan::engine {
namespace {

// Of a slot piece: the model's own parameter where that is the master, in its shape where whole.
ParamPiece make_piece(shard::ShardedModel& model, int unit, const layout::SlotPiece& piece) {
  const shard::UnitSpec& spec = model.plan().units[static_cast<std::size_t>(unit)];
  const shard::UnitStates& states = model.states(unit);
  const int param = spec.params[static_cast<std::size_t>(piece.slot)];
  const shard::ParamSpec& of = model.plan().params[static_cast<std::size_t>(param)];
  const bool whole = piece.in_shard.size() == of.numel();
  const bool sharded =
      model.settings().policy.shards_optimizer() && model.groups(unit).cut->size() > 1;
  const bool stays = states.master_is_params() && model.unit(unit).keeps_whole();
  if (whole && stays && !sharded) return {param, model.unit(unit).param(piece.slot), true};
  at::Tensor values = states.master.narrow(0, piece.in_shard.begin, piece.in_shard.size()).detach();
  if (whole) values = values.view(of.sizes);
  return {param, std::move(values), whole, piece.in_slot.begin};
}

using TorchOptimizer = std::shared_ptr<torch::optim::Optimizer>;

StateAccess access_to(const TorchOptimizer& optimizer, const std::vector<at::Tensor>& pieces) {
  StateAccess access;
  access.kind = torch_kind(*optimizer);
  access.tensors = [optimizer, pieces](std::size_t piece) {
    const auto state = optimizer->state().find(pieces[piece].unsafeGetTensorImpl());
    return state == optimizer->state().end() ? decltype(TorchState::tensors){}
                                             : look_into(*state->second).tensors;
  };
  // Every piece takes part in every step, so one counter stands for all.
  access.scalars = [optimizer] {
    for (const auto& [piece, state] : optimizer->state()) {
      const auto step = look_into(*state).step;
      if (step) return StateAccess::Scalars{{"step", static_cast<double>(*step)}};
    }
    return StateAccess::Scalars{};
  };
  access.make = [optimizer, pieces](const std::vector<std::string>& names,
                                    const StateAccess::Scalars& scalars) {
    const auto step = scalars.find("step");
    const auto count = step == scalars.end() ? 0 : static_cast<std::int64_t>(step->second);
    for (const at::Tensor& piece : pieces) {
      optimizer->state()[piece.unsafeGetTensorImpl()] =
          make_torch_state(*optimizer, piece, names, count);
    }
  };
  return access;
}

}  // namespace

PieceUpdater::PieceUpdater(const StepFactory& factory, shard::ShardedModel& model) {
  std::vector<ParamPiece> given;
  for (const int unit : model.step_order()) {
    for (const layout::SlotPiece& piece : model.states(unit).owned.pieces) {
      given.push_back(make_piece(model, unit, piece));
      pieces_.push_back({unit, piece, given.back().values});
      bytes_ += static_cast<std::int64_t>(given.back().values.nbytes());
    }
  }
  step_ = factory(given);
}

// A unit that was released and is whole again has other memory; the optimizer keeps its tensors.
void PieceUpdater::follow_masters(shard::ShardedModel& model) {
  model.take_back();
  for (const Piece& piece : pieces_) {
    const at::Tensor& master = model.states(piece.unit).master;
    if (piece.values.is_alias_of(master)) continue;
    const layout::ElemRange range = piece.piece.in_shard;
    const at::Tensor values = master.narrow(0, range.begin, range.size()).detach();
    piece.values.set_data(values.view(piece.values.sizes()));
  }
}

void PieceUpdater::update(shard::ShardedModel& model, const UpdateScalars& scalars) {
  follow_masters(model);
  int gathered = -1;
  at::Tensor grads;
  for (Piece& piece : pieces_) {
    if (piece.unit != gathered) {
      grads = model.gradients().owned(piece.unit);
      gathered = piece.unit;
    }
    // In the master's dtype, which the sum mostly has: nobody reads that after the update, and a
    // copy of all gradients would be the largest thing of a step.
    const layout::ElemRange range = piece.piece.in_shard;
    at::Tensor grad = grads.narrow(0, range.begin, range.size()).to(piece.values.scalar_type());
    if (scalars.grad_factor != 1) grad.mul_(scalars.grad_factor);
    piece.values.mutable_grad() = grad.view(piece.values.sizes());
  }
  {
    const profile::Span span(model.group().recorder().get(),
                             {.name = "update",
                              .kind = profile::Kind::update,
                              .bytes = bytes_,
                              .device = profile::index_of(model.device())});
    step_(scalars);
  }
  for (Piece& piece : pieces_) piece.values.mutable_grad().reset();
  for (const int unit : model.step_order()) {
    shard::UnitStates& states = model.states(unit);
    if (!states.master_is_params()) states.params.copy_(states.master);
    model.updates().publish(unit);
  }
  model.updates().finish();
}

std::string PieceUpdater::kind() const { return access_ ? access_->kind : kUnknownOptimizer; }

std::vector<StateColumn> PieceUpdater::state_columns(shard::ShardedModel& /*model*/) {
  if (!access_) return {};
  std::map<std::string, StateColumn> columns;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    for (const auto& [name, values] : access_->tensors(i)) {
      StateColumn& column = columns[name];
      column.name = name;
      column.parts.push_back({pieces_[i].unit, pieces_[i].piece, values.view(-1)});
    }
  }
  std::vector<StateColumn> result;
  result.reserve(columns.size());
  for (auto& [name, column] : columns) result.push_back(std::move(column));
  return result;
}

std::map<std::string, double> PieceUpdater::state_scalars() const {
  return access_ ? access_->scalars() : std::map<std::string, double>{};
}

void PieceUpdater::make_states(const std::vector<std::string>& names,
                               const std::map<std::string, double>& scalars) {
  if (access_) access_->make(names, scalars);
}

std::unique_ptr<Updater> make_torch_updater(const OptimizerFactory& factory,
                                            shard::ShardedModel& model) {
  const bool sharded = model.settings().policy.shards_optimizer();
  std::vector<at::Tensor> tensors;
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  const auto make = [&](const std::vector<ParamPiece>& pieces) -> StepFunction {
    for (const ParamPiece& piece : pieces) tensors.push_back(piece.values);
    optimizer = factory(tensors);
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
  auto updater = std::make_unique<PieceUpdater>(make, model);
  if (!torch_kind(*optimizer).empty()) {
    updater->set_state_access(access_to(optimizer, tensors));
  }
  return updater;
}

}  // namespace capstan::engine

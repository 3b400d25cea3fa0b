// An optimizer that is not ours on our shards: it is given the master copy, one tensor per slot
// piece, and never knows that there are other ranks.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/engine/updater.h"

namespace torch::optim {
class Optimizer;
}

namespace capstan::engine {

// What the optimizer gets of one parameter.
struct ParamPiece {
  int param = 0;      // index in the plan
  at::Tensor values;  // the parameter itself where it is whole and has no other master, else a part
                      // of the master copy: of the parameter's shape, or 1-D when cut
  bool whole = false;      // not cut
  std::int64_t begin = 0;  // first element of the parameter that it has
};

// One update of all pieces from their gradients. scalars.lr is empty where no schedule runs: the
// optimizer then keeps its own rates.
using StepFunction = std::function<void(const UpdateScalars& scalars)>;
using StepFactory = std::function<StepFunction(const std::vector<ParamPiece>& pieces)>;

// How a checkpoint reaches the optimizer's state; pieces are counted as the StepFactory got them.
struct StateAccess {
  using Scalars = std::map<std::string, double>;
  std::string kind;  // e.g. torch.adamw
  // The tensors of one piece that have as many elements as it, by name.
  std::function<std::vector<std::pair<std::string, at::Tensor>>(std::size_t piece)> tensors;
  std::function<Scalars()> scalars;
  // Makes these tensors, with any values, for every piece, and sets the counters.
  std::function<void(const std::vector<std::string>& names, const Scalars& scalars)> make;
};

class PieceUpdater final : public Updater {
 public:
  PieceUpdater(const StepFactory& factory, shard::ShardedModel& model);

  void update(shard::ShardedModel& model, const UpdateScalars& scalars) override;

  // Without it the optimizer's state is no part of checkpoints.
  void set_state_access(StateAccess access) { access_ = std::move(access); }
  std::string kind() const override;
  std::vector<StateColumn> state_columns(shard::ShardedModel& model) override;
  std::map<std::string, double> state_scalars() const override;
  void make_states(const std::vector<std::string>& names,
                   const std::map<std::string, double>& scalars) override;

 private:
  struct Piece {
    int unit = 0;
    layout::SlotPiece piece;  // in_shard counts from the first owned element
    at::Tensor values;
  };
  void follow_masters(shard::ShardedModel& model);

  std::vector<Piece> pieces_;
  std::int64_t bytes_ = 0;  // of their values
  StepFunction step_;
  std::optional<StateAccess> access_;
};

// Makes one of libtorch's optimizers for these tensors: element-wise ones only, since a tensor may
// be a part of a parameter.
using OptimizerFactory =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor> pieces)>;

// Throws ConfigError for LBFGS where the optimizer is sharded: it needs whole tensors.
std::unique_ptr<Updater> make_torch_updater(const OptimizerFactory& factory,
                                            shard::ShardedModel& model);

}  // namespace capstan::engine

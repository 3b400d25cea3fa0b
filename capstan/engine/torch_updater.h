// An optimizer that is not ours on our shards: it is given the master copy, one tensor per slot
// piece, and never knows that there are other ranks.
#pragma once

#include <functional>
#include <memory>
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
  bool whole = false;  // not cut
};

// One update of all pieces from their gradients. scalars.lr is empty where no schedule runs: the
// optimizer then keeps its own rates.
using StepFunction = std::function<void(const UpdateScalars& scalars)>;
using StepFactory = std::function<StepFunction(const std::vector<ParamPiece>& pieces)>;

class PieceUpdater final : public Updater {
 public:
  PieceUpdater(const StepFactory& factory, shard::ShardedModel& model);

  void update(shard::ShardedModel& model, const UpdateScalars& scalars) override;

 private:
  struct Piece {
    int unit = 0;
    layout::ElemRange range;  // in the owned elements
    at::Tensor values;
  };
  std::vector<Piece> pieces_;
  StepFunction step_;
};

// Makes one of libtorch's optimizers for these tensors: element-wise ones only, since a tensor may
// be a part of a parameter.
using OptimizerFactory =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor> pieces)>;

// Throws ConfigError for LBFGS where the optimizer is sharded: it needs whole tensors.
std::unique_ptr<Updater> make_torch_updater(const OptimizerFactory& factory,
                                            shard::ShardedModel& model);

}  // namespace capstan::engine

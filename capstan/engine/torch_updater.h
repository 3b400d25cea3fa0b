// An optimizer of libtorch, or a user's own, on our shards: it is given the master copy, one tensor
// per slot piece, and never knows that there are other ranks.
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

// Makes the optimizer for these tensors: element-wise ones only, since a tensor may be a part of a
// parameter.
using OptimizerFactory =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor> pieces)>;

class TorchUpdater final : public Updater {
 public:
  // Throws ConfigError for LBFGS where the optimizer is sharded: it needs whole tensors.
  TorchUpdater(const OptimizerFactory& factory, shard::ShardedModel& model);
  ~TorchUpdater() override;

  // scalars.lr is empty where no schedule runs: the optimizer then keeps its own rate.
  void update(shard::ShardedModel& model, const UpdateScalars& scalars) override;

 private:
  struct Piece {
    int unit = 0;
    layout::ElemRange range;  // in the owned elements
    at::Tensor values;        // a part of the master copy
  };
  std::vector<Piece> pieces_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace capstan::engine

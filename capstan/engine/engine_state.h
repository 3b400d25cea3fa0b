// What an Engine holds; seen by the sources of this folder only.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "capstan/comm/world.h"
#include "capstan/engine/engine.h"
#include "capstan/engine/grad_gate.h"
#include "capstan/engine/run_log.h"
#include "capstan/engine/updater.h"
#include "capstan/optim/cpu/worker_pool.h"
#include "capstan/precision/loss_scale.h"
#include "capstan/shard/hooks.h"

namespace capstan::engine {

class EngineState {
 public:
  // Called once the options are known to be good.
  using ViewMaker = std::function<shard::ModelView(const Options&)>;
  EngineState(const ViewMaker& view, Options options, Parts parts);
  ~EngineState();

  void backward(const at::Tensor& loss, const BackwardOptions& how);
  StepReport step(std::optional<bool> boundary);

  void change_no_sync(int by);
  void allow_scaled_backward(bool allow);
  void close() {
    if (world_ != nullptr) world_->close();
  }
  std::vector<double> learning_rates() const;
  void set_hyper_params(const std::vector<optim::HyperParams>& groups);
  shard::Hooks& hooks() { return *hooks_; }
  int moment_index(std::string_view which) const;
  std::string describe() const;

  // From the summed gradient to the averaged, unscaled one.
  double gradient_factor() const { return after_sum_ / backward_scale_; }

  Options options;
  Progress progress;
  std::unique_ptr<shard::ShardedModel> sharded;
  precision::LossScaleState loss_scale;

 private:
  void join(const Parts& parts);
  void build(const shard::ModelView& view);
  void make_updater(const Parts& parts);
  StepReport take_step();
  GradNorm check_and_apply(const StepReport& report, bool look);
  void apply(const StepReport& report, double factor, const optim::StepGate* gate = nullptr);
  template <typename Body>
  auto guarded(const char* phase, Body&& body);

  NullLogger silence_;
  std::unique_ptr<comm::World> world_;  // only where nobody gave us a group
  comm::Group* group_ = nullptr;
  int no_sync_depth_ = 0;
  bool scaled_by_caller_ = false;  // a foreign backward may come although the loss needs its scale
  double after_sum_ = 1;           // what is left of the division by the ranks
  double backward_scale_ = 1;      // the loss scale of this step's backwards
  shard::StateSettings state_settings_;
  std::unique_ptr<optim::WorkerPool> workers_;
  std::unique_ptr<shard::Hooks> hooks_;
  std::unique_ptr<Updater> updater_;
  std::unique_ptr<GradGate> gate_;  // only where gradients are in GPU memory
  std::optional<schedule::Schedule> schedule_;
  std::vector<double> base_lrs_;  // by group
  std::optional<RunLog> log_;
};

}  // namespace capstan::engine

// What an Engine holds; seen by the sources of this folder only.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "capstan/checkpoint/background_save.h"
#include "capstan/checkpoint/folder.h"
#include "capstan/checkpoint/folder_lock.h"
#include "capstan/checkpoint/memory_ahead.h"
#include "capstan/comm/mesh_groups.h"
#include "capstan/comm/world.h"
#include "capstan/engine/checkpoint_types.h"
#include "capstan/engine/early_choice.h"
#include "capstan/engine/engine.h"
#include "capstan/engine/grad_gate.h"
#include "capstan/engine/run_log.h"
#include "capstan/engine/updater.h"
#include "capstan/optim/cpu/worker_pool.h"
#include "capstan/precision/loss_scale.h"
#include "capstan/shard/hooks.h"
#include "capstan/store/pool.h"

namespace capstan::checkpoint {
class Reader;
}

namespace capstan::engine {

class StoredNames;

class EngineState final : public shard::BackwardWatcher {
 public:
  // Called once the options are known to be good.
  using ViewMaker = std::function<shard::ModelView(const Options&)>;
  EngineState(const ViewMaker& view, Options options, Parts parts);
  ~EngineState();
  EngineState(const EngineState&) = delete;
  EngineState& operator=(const EngineState&) = delete;

  void backward(const at::Tensor& loss, const BackwardOptions& how);
  StepReport step(std::optional<bool> boundary);

  // In save.cpp and load.cpp. Collective. An error on one rank is thrown by all.
  Saved save(const std::filesystem::path& folder, const SaveOptions& how);
  std::optional<Loaded> load(const std::filesystem::path& folder, const LoadOptions& how);
  // Waits for a save in the background and throws, on all ranks, what went wrong with it.
  // Collective.
  void finish_saves();
  // Returns when a save in the background needs the memory of parameters and states no more.
  void before_change();

  void offload_states(const shard::AsideKinds& kinds);
  void reload_states() { sharded->bring_back(); }
  shard::AsideKinds offloaded_states() const { return sharded->aside(); }

  void change_no_sync(int by);
  void expect_backward(bool allowed);
  at::Tensor scale(const at::Tensor& loss);
  void close() {
    finish_saves();
    if (world_ != nullptr) world_->close();
  }
  std::vector<double> learning_rates() const;
  void set_hyper_params(const std::vector<optim::HyperParams>& groups);
  shard::Hooks& hooks() { return *hooks_; }
  int moment_index(std::string_view which) const;
  std::string describe() const;

  at::Device device() const { return sharded->device(); }
  // Applied steps as the optimizer and the schedule count them: from their own beginning, which a
  // load may leave where it was.
  std::int64_t optimizer_steps() const { return progress.applied() - optimizer_start_; }
  void set_optimizer_steps(std::int64_t steps) { optimizer_start_ = progress.applied() - steps; }
  std::int64_t schedule_steps() const { return progress.applied() - schedule_start_; }

  // From the summed gradient to the averaged, unscaled one.
  double gradient_factor() const { return after_sum_ / backward_scale_; }

  Options options;
  Progress progress;
  std::unique_ptr<shard::ShardedModel> sharded;
  precision::LossScaleState loss_scale;

 private:
  void join(const Parts& parts, c10::Device device);
  void build(const shard::ModelView& view);
  void make_updater(const Parts& parts);
  void look_at_gradients();
  StepReport take_step();
  GradNorm check_and_apply(const StepReport& report, bool look);
  void apply(const StepReport& report, double factor, const optim::StepGate* gate = nullptr);
  // Updates in backward.
  UpdateScalars guess_step() const;
  bool updates_early() const;
  void backward_begins() override;
  void early_step_ended();

  struct SaveContents;
  SaveContents save_contents(const SaveOptions& how);
  void add_weights(SaveContents& contents, const SaveOptions& how, const StoredNames& names);
  void add_optimizer(SaveContents& contents, const SaveOptions& how, const StoredNames& names);
  void add_rng(SaveContents& contents);
  std::vector<NamedTensor> rng_states() const;
  void check_tags(const std::string& tag);
  std::unique_ptr<checkpoint::SaveTurn> take_turn(const std::filesystem::path& folder);
  checkpoint::BufferOptions buffer_options() const;
  void save_now(const checkpoint::SaveRequest& request, const checkpoint::FilePlan& plan,
                const std::vector<checkpoint::Piece>& pieces);
  void save_in_background(checkpoint::SaveRequest request, checkpoint::FilePlan plan,
                          std::vector<checkpoint::Piece> pieces);
  checkpoint::TakeMemory snapshot_memory();
  void take_memory_ahead();
  void look_after_save();
  void tell_saved();
  void end_save() noexcept;

  struct LoadPlan;
  struct ChosenCheckpoint {
    std::filesystem::path folder;             // empty: there is none
    std::optional<checkpoint::Found> newest;  // where it was chosen among several
  };
  std::filesystem::path named_checkpoint(const std::filesystem::path& folder,
                                         const std::string& tag, bool only_weights);
  ChosenCheckpoint find_checkpoint(const std::filesystem::path& folder, const LoadOptions& how,
                                   std::vector<checkpoint::Found>& passed_over);
  Loaded load_from(const std::filesystem::path& chosen, const LoadOptions& how);
  LoadPlan load_plan(const checkpoint::Reader& reader, const LoadOptions& how,
                     const StoredNames& names);
  void plan_weights(LoadPlan& plan, const checkpoint::Reader& reader, const StoredNames& names);
  void plan_optimizer(LoadPlan& plan, const checkpoint::Reader& reader, const StoredNames& names);
  void read_unit(checkpoint::Reader& reader, const LoadPlan& plan, int unit);
  void read_weights(checkpoint::Reader& reader, const LoadPlan& plan);
  void read_optimizer(checkpoint::Reader& reader, const StoredNames& names);
  void restore_run(checkpoint::Reader& reader, const LoadOptions& how, bool optimizer);
  void restore_rng(checkpoint::Reader& reader);

  template <typename Body>
  auto guarded(Phase phase, Body&& body);

  NullLogger silence_;
  std::unique_ptr<comm::World> world_;  // only where nobody gave us a group
  comm::Group* group_ = nullptr;
  std::unique_ptr<comm::MeshGroups> mesh_;
  int no_sync_depth_ = 0;
  bool foreign_allowed_ = false;  // although the loss needs its scale
  double foreign_factor_ = 1;     // of its gradients: what the dtype of its loss does not hold
  double after_sum_ = 1;          // what is left of the division by the ranks
  double backward_scale_ = 1;     // the loss scale of this step's backwards
  std::optional<bool> boundary_;  // what the caller said of the backward that runs
  shard::StateSettings state_settings_;
  std::unique_ptr<optim::WorkerPool> workers_;
  std::unique_ptr<shard::Hooks> hooks_;
  std::unique_ptr<Updater> updater_;
  std::unique_ptr<GradGate> gate_;  // only where gradients are in GPU memory
  EarlyChoice early_choice_;
  std::optional<UpdateScalars> guess_;  // what units are updated with in this backward
  bool guessed_ = false;                // the step was what would have been guessed
  std::chrono::steady_clock::time_point last_step_ = std::chrono::steady_clock::now();
  std::optional<schedule::Schedule> schedule_;
  std::vector<double> base_lrs_;  // by group
  std::unique_ptr<RunLog> log_;
  ModelExtras extras_;
  std::int64_t optimizer_start_ = 0;  // applied steps before the optimizer's first
  std::int64_t schedule_start_ = 0;
  std::vector<checkpoint::Found> damaged_;               // as loads found them; on rank 0
  std::unique_ptr<checkpoint::FolderLock> folder_lock_;  // of the folder last saved to, on rank 0
  // A save in the background, as the log tells of it.
  struct Saving {
    std::unique_ptr<checkpoint::SaveTurn> turn;  // on rank 0
    Saved saved;
    std::chrono::steady_clock::time_point began;
    std::chrono::nanoseconds blocked{0};  // training, apart from what the save counts itself
    profile::Span span;                   // until its end is seen
    std::unique_ptr<checkpoint::BackgroundSave> save;
  };
  store::Ledger snapshot_ledger_;
  std::unique_ptr<store::Pool> snapshot_memory_;  // kept from save to save
  std::unique_ptr<checkpoint::MemoryAhead> memory_ahead_;
  std::unique_ptr<Saving> saving_;  // last: reads what stands above
};

}  // namespace capstan::engine

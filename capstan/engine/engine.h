// The composition root: a model and options become a train step.
//
//   capstan::Engine engine(model, options);
//   for (auto& batch : loader) {
//     engine.backward(loss_of(model, batch));
//     engine.step();
//   }
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/engine/checkpoint_types.h"
#include "capstan/engine/options.h"
#include "capstan/engine/parts.h"
#include "capstan/engine/run_log.h"
#include "capstan/engine/step_types.h"
#include "capstan/shard/model_view.h"
#include "capstan/shard/put_aside.h"
#include "capstan/store/ledger.h"
#include "capstan/store/options.h"

namespace torch::nn {
class Module;
template <typename Contained>
class ModuleHolder;
}  // namespace torch::nn

namespace capstan::engine {

class EngineState;

// Owns:    the sharded state of one model. Several engines may live in one process.
// Threads: one caller at a time.
// Ranks:   the constructor, backward(), step() and the readers and writers are collective.
// Errors:  when backward() or step() throws, the group is aborted, so that no peer waits for us.
class Engine {
 public:
  Engine(std::shared_ptr<torch::nn::Module> model, Options options, Parts parts = {});
  template <typename Contained>
  Engine(const torch::nn::ModuleHolder<Contained>& model, Options options, Parts parts = {})
      : Engine(model.ptr(), std::move(options), std::move(parts)) {}
  // A model of another kind: its front end reports uses to inside().hooks().
  Engine(shard::ModelView model, Options options, Parts parts = {});
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  ~Engine();  // the hooks go; what is sharded stays placeholders, but for shard::leave_shards()

  // Differentiates loss (one element), times the loss scale, divided by the accumulation steps.
  void backward(const at::Tensor& loss, BackwardOptions options = {});
  // Differentiates anything: outputs with the gradients of a loss with respect to them, one of the
  // same shape for each (an undefined one stands for 1, for an output of one element). The
  // gradients are multiplied as the loss is above, unless they come from a loss that was
  // (already_scaled).
  void backward(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& gradients,
                BackwardOptions options = {});
  // After every micro-batch: updates the parameters when the last one of a step was seen.
  // `boundary` says so itself whether it was the last one.
  StepReport step(std::optional<bool> boundary = std::nullopt);
  // Forgets the gradients since the last step.
  void clear_gradients();

  // A checkpoint in folder/<tag>; see docs/checkpoints.md. Collective. When it throws, on every
  // rank, nothing was saved or touched and training can go on.
  Saved save_checkpoint(const std::filesystem::path& folder, const SaveOptions& options = {});
  // Waits until a save in the background is complete; throws what went wrong with it, on every
  // rank, as the next step(), save, load or close() does too: training can go on then. Collective.
  void finish_saves();
  // Nothing where the folder holds no complete checkpoint. Collective. A ConfigError lists all that
  // does not fit, and nothing was touched; after an IoError the model's values are undefined.
  std::optional<Loaded> load_checkpoint(const std::filesystem::path& folder,
                                        const LoadOptions& options = {});

  // Makes room on the device: what is there of these goes to page-locked host memory. Parameters,
  // gradients and states stay readable meanwhile, slowly. The next backward, step, save, load or
  // access brings all back by itself, as reload_states() does; a forward at stage 3 too.
  void offload_states(const shard::AsideKinds& kinds);
  void reload_states();
  shard::AsideKinds offloaded_states() const;

  // At the end of the run: leaves the ranks in order, where the engine joined them itself.
  // Collective.
  void close();

  // While the handle lives, backwards only accumulate on this rank: no reduction.
  class NoSync {
   public:
    explicit NoSync(EngineState& state);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    EngineState& state_;
  };
  [[nodiscard]] NoSync no_sync();

  // While the handle lives, every parameter of the model is whole: for export, inspection, or a
  // method that the units do not see. Collective, both ways.
  class WholeModel {
   public:
    explicit WholeModel(EngineState& state);
    ~WholeModel();
    WholeModel(const WholeModel&) = delete;
    WholeModel& operator=(const WholeModel&) = delete;

   private:
    EngineState& state_;
  };
  [[nodiscard]] WholeModel whole_parameters();

  // Whole tensors by name, on every rank, at any stage; see shard/access.h. Collective.
  at::Tensor parameter(std::string_view name);  // in its training dtype
  at::Tensor master(std::string_view name);     // the copy the optimizer updates
  at::Tensor gradient(std::string_view name);   // averaged and unscaled
  at::Tensor state(std::string_view name, std::string_view which);  // e.g. "exp_avg"
  void set_parameter(std::string_view name, const at::Tensor& value);
  void set_gradient(std::string_view name, const at::Tensor& value);
  void set_state(std::string_view name, std::string_view which, const at::Tensor& value);

  const Options& options() const;
  const Progress& progress() const;
  double loss_scale() const;                   // that the next backward uses
  std::vector<double> learning_rates() const;  // of the next step, by parameter group
  // What the engine holds on the device, on the host or on disks, now and at most.
  store::Ledger& ledger(store::Placement where = store::Placement::device);
  comm::Group& group();      // all ranks
  comm::MeshGroups& mesh();  // and those that share something
  // Mesh, dtypes and units as a table; logged once at start.
  std::string describe() const;

  // The objects that do the work, for front ends and tests: engine_state.h.
  EngineState& inside();

 private:
  std::shared_ptr<torch::nn::Module> model_;  // the hooks in the state look at its modules
  std::unique_ptr<EngineState> state_;
};

}  // namespace capstan::engine

namespace capstan {
using engine::Engine;
}  // namespace capstan

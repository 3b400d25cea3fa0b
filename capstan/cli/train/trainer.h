// The training loop of `capstan train`: batches in, steps, validation, figures out.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/cli/page/run_page.h"
#include "capstan/cli/train/arguments.h"
#include "capstan/cli/train/checkpoints.h"
#include "capstan/cli/train/corpus.h"
#include "capstan/cli/train/gpu_use.h"
#include "capstan/cli/train/loss_curve.h"
#include "capstan/cli/train/passes.h"
#include "capstan/cli/train/progress_view.h"
#include "capstan/cli/train/step_costs.h"
#include "capstan/cli/train/stop_request.h"
#include "capstan/data/sampler.h"
#include "capstan/engine/engine.h"
#include "capstan/models/model.h"
#include "capstan/monitor/log.h"
#include "capstan/schedule/options.h"

namespace capstan::cli::train {

// What the loop works with; all of it must outlive the trainer.
struct TrainerParts {
  const Arguments& arguments;
  Corpus& corpus;
  std::shared_ptr<models::Model> model;
  Engine& engine;
  StopRequest& stop;
  c10::Device device;
  data::Options sampling;
  std::optional<schedule::Curriculum> curriculum;
  std::optional<schedule::LayerDrop> layer_drop;
  bool shows;              // true on one rank: it prints and writes files
  monitor::Log* monitors;  // there; null elsewhere
  std::string metrics;     // the file where the figures of steps go; empty: nowhere
  Logger& logger;
};

// Ranks:   run() is collective.
class Trainer {
 public:
  explicit Trainer(const TrainerParts& parts);

  void run();

 private:
  // Averaged over all ranks.
  struct Agreed {
    double loss = 0;
    bool stop = false;
  };

  using CutRows = std::function<at::Tensor(const at::Tensor& rows)>;
  Batch read_batch(const data::Windows& windows, const std::vector<std::int64_t>& samples,
                   const CutRows& cut = {}) const;
  at::Tensor our_part(const at::Tensor& tokens) const;
  void resume_run();
  void tell_other_schedule(const Resumed& before);
  void save_run();
  std::int64_t length_of(std::int64_t step) const;  // of its sequences, in tokens
  std::int64_t tokens_of(std::int64_t step) const;  // of all ranks
  Batch training_batch(const std::vector<std::int64_t>& samples, std::int64_t step) const;
  void drop_layers(std::int64_t step);
  bool take_step(std::int64_t step);  // false: somebody asked to stop
  Agreed agree(const at::Tensor& loss, bool stop);
  void tell_costs();
  void report_step(std::int64_t step, double loss, const engine::StepReport& report);
  void tell(const std::function<void(page::RunPage&)>& show);
  void validate(std::int64_t step);
  std::string sampled_text();
  void summarize();

  const Arguments& arguments_;
  Corpus& corpus_;
  std::shared_ptr<models::Model> model_;
  Engine& engine_;
  StopRequest& stop_;
  c10::Device device_;
  bool shows_;
  monitor::Log* monitors_;
  std::string metrics_;
  Logger& logger_;
  data::Sampler sampler_;
  std::optional<schedule::Curriculum> curriculum_;
  std::optional<schedule::LayerDrop> layer_drop_;
  std::uint64_t drop_seed_;
  std::unique_ptr<Passes> passes_;
  std::unique_ptr<ProgressView> view_;   // where shows_ is true, like the next two
  std::unique_ptr<page::RunPage> page_;  // null without --page
  std::unique_ptr<GpuUse> gpu_use_;      // null on the CPU
  std::unique_ptr<StepCosts> costs_;     // null without --profile
  monitor::StepStats last_;              // of the step that was taken last
  Curve curve_;
  std::int64_t first_step_ = 0;  // what the checkpoint had taken
  std::chrono::steady_clock::time_point step_began_;
  std::chrono::duration<double> timed_{0};  // of the steps after the first
  std::int64_t timed_tokens_ = 0;
};

}  // namespace capstan::cli::train

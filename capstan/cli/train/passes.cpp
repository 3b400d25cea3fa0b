#include "capstan/cli/train/passes.h"

#include <utility>

#include <ATen/Functions.h>

#include "capstan/engine/engine_state.h"
#include "capstan/engine/pipeline_stage.h"
#include "capstan/pipeline/executor.h"
#include "capstan/pipeline/schedules.h"
#include "capstan/shard/torch_dtype.h"

namespace capstan::cli::train {
namespace {

at::Tensor no_loss(c10::Device device) {
  return at::zeros({}, at::TensorOptions(device).dtype(at::kFloat));
}

class WholePasses final : public Passes {
 public:
  WholePasses(Engine& engine, models::Model& model, c10::Device device, bool step)
      : engine_(engine), model_(model), device_(device), step_(step) {}

  at::Tensor train(const ReadBatch& read) override {
    const std::int64_t count = engine_.options().batch.accumulation_steps;
    at::Tensor sum = no_loss(device_);
    for (std::int64_t i = 0; i < count; ++i) {
      const Batch next = read(i);
      const at::Tensor loss = model_.forward(next.ids, next.targets);
      engine_.backward(loss);
      sum += loss.detach();
      if (step_) report_ = engine_.step();
    }
    return sum / static_cast<double>(count);
  }

  engine::StepReport finish_step() override {
    if (step_) return report_;
    engine_.inside().sharded().finish_gradients();
    engine_.clear_gradients();
    return {.boundary = true, .applied = true, .lr = engine_.learning_rates()};
  }

  at::Tensor evaluate(std::int64_t batches, const ReadBatch& read) override {
    at::Tensor sum = no_loss(device_);
    for (std::int64_t i = 0; i < batches; ++i) {
      const Batch next = read(i);
      sum += model_.forward(next.ids, next.targets);
    }
    return sum / static_cast<double>(batches);
  }

  std::vector<at::Tensor> next_logits(std::span<models::Sequences> all) override {
    return model_.next_logits(all);
  }

 private:
  Engine& engine_;
  models::Model& model_;
  c10::Device device_;
  bool step_;
  engine::StepReport report_;
};

// What the executor asks of a language model.
class LanguageStage final : public engine::PipelineStage {
 public:
  LanguageStage(Engine& engine, models::Stage& stage, const pipeline::Shape& shape)
      : PipelineStage(engine, shape), stage_(stage) {}

  pipeline::Tensors inputs(int micro_batch) override { return {read(micro_batch).ids}; }
  pipeline::Tensors labels(int micro_batch) override { return {read(micro_batch).targets}; }
  pipeline::Tensors forward(int /*chunk*/, const pipeline::Tensors& inputs) override {
    return {stage_.run(inputs.at(0))};
  }
  at::Tensor loss(const pipeline::Tensors& outputs, const pipeline::Tensors& labels) override {
    return stage_.loss(outputs.at(0), labels.at(0));
  }

  ReadBatch read;  // of the pass that is under way

 private:
  models::Stage& stage_;
};

class PipedPasses final : public Passes {
 public:
  PipedPasses(Engine& engine, models::Model& model, c10::Device device)
      : model_(*model.as_stage()),
        device_(device),
        sizes_(model.blueprint().sizes()),
        dtype_(shard::torch_dtype(engine.options().precision.params)),
        pipe_(engine.mesh().over(layout::Axis::pipe)),
        shape_{.stages = pipe_.size(),
               .micro_batches = static_cast<int>(engine.options().batch.accumulation_steps)},
        stage_(engine, model_, shape_),
        training_(make_schedule(engine.options().pipeline.schedule, shape_), pipe_, stage_,
                  device) {}

  at::Tensor train(const ReadBatch& read) override {
    stage_.read = read;
    return mean(training_.run());
  }

  engine::StepReport finish_step() override { return stage_.last_step(); }

  at::Tensor evaluate(std::int64_t batches, const ReadBatch& read) override {
    stage_.read = read;
    const pipeline::Shape shape = {.stages = shape_.stages,
                                   .micro_batches = static_cast<int>(batches)};
    pipeline::Executor executor(make_schedule(pipeline::Kind::inference, shape), pipe_, stage_,
                                device_);
    return mean(executor.run());
  }

  // One stage after another, each of which tells all: a few tokens, once per token.
  std::vector<at::Tensor> next_logits(std::span<models::Sequences> all) override {
    std::vector<at::Tensor> now;
    for (int stage = 0; stage < pipe_.size(); ++stage) {
      const bool last = stage == pipe_.size() - 1;
      if (stage == pipe_.rank()) now = model_.extend(all, std::move(now));
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (stage != pipe_.rank()) {
          const at::Tensor& ids = all[i].ids;
          const std::vector<std::int64_t> shape =
              last ? std::vector{ids.size(0), sizes_.vocab}
                   : std::vector{ids.size(0), ids.size(1), sizes_.width};
          now.resize(all.size());
          now[i] = at::empty(shape, at::TensorOptions(device_).dtype(dtype_));
        }
        now[i] = now[i].contiguous();
        pipe_.broadcast(now[i].view(-1), stage, "hidden states").wait();
      }
    }
    return now;
  }

 private:
  at::Tensor mean(const pipeline::Tensors& losses) const {
    return losses.empty() ? no_loss(device_) : at::stack(losses).mean().to(at::kFloat);
  }

  models::Stage& model_;
  c10::Device device_;
  models::Sizes sizes_;
  at::ScalarType dtype_;
  comm::Group& pipe_;
  pipeline::Shape shape_;
  LanguageStage stage_;
  pipeline::Executor training_;
};

}  // namespace

std::unique_ptr<Passes> make_whole_passes(Engine& engine, models::Model& model, c10::Device device,
                                          bool step) {
  return std::make_unique<WholePasses>(engine, model, device, step);
}

std::unique_ptr<Passes> make_piped_passes(Engine& engine, models::Model& model,
                                          c10::Device device) {
  return std::make_unique<PipedPasses>(engine, model, device);
}

}  // namespace capstan::cli::train

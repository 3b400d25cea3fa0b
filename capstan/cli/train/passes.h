// How batches go through the model: at once, or stage by stage through a pipeline.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/engine/engine.h"
#include "capstan/models/model.h"

namespace capstan::cli::train {

struct Batch {
  at::Tensor ids;      // [micro-batch, tokens]
  at::Tensor targets;  // same
};
// The n-th of a pass.
using ReadBatch = std::function<Batch(std::int64_t index)>;

// Ranks: all members are collective.
class Passes {
 public:
  virtual ~Passes() = default;

  // Forward and backward of a step's micro-batches, and the step: their mean loss. Zero on ranks
  // that do not have the output layer.
  virtual at::Tensor train(const ReadBatch& read) = 0;
  virtual engine::StepReport finish_step() = 0;
  // The mean loss of so many batches, likewise.
  virtual at::Tensor evaluate(std::int64_t batches, const ReadBatch& read) = 0;
  // As models::Model::next_logits(), on every rank.
  virtual std::vector<at::Tensor> next_logits(std::span<models::Sequences> all) = 0;
};

// `step`: false to leave the update out.
std::unique_ptr<Passes> make_whole_passes(Engine& engine, models::Model& model, c10::Device device,
                                          bool step);
// The model is the stage of this rank. Throws ConfigError.
std::unique_ptr<Passes> make_piped_passes(Engine& engine, models::Model& model, c10::Device device);

}  // namespace capstan::cli::train

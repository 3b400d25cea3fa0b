// A GPT-2 language model whose blocks, vocabulary and loss are split over tensor ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <torch/nn/cloneable.h>

#include "capstan/models/gpt_blueprint.h"
#include "capstan/models/model.h"
#include "capstan/models/split_gpt_layers.h"
#include "capstan/nn/unit.h"
#include "capstan/recompute/span_times.h"

namespace capstan::models {

// The blocks in order, named 0, 1, …
class SplitBlocksImpl : public torch::nn::Cloneable<SplitBlocksImpl> {
 public:
  explicit SplitBlocksImpl(SplitOptions options) : options_(std::move(options)) { reset(); }
  void reset() override;

  std::vector<nn::Unit<SplitBlock>> blocks;

 private:
  SplitOptions options_;
};
TORCH_MODULE(SplitBlocks);

// Everything below the output layer; a module of its own because files name it.
class SplitTransformerImpl : public torch::nn::Cloneable<SplitTransformerImpl> {
 public:
  explicit SplitTransformerImpl(SplitOptions options) : options_(std::move(options)) { reset(); }
  void reset() override;
  // [B, T] -> as activations lie outside; a later stage of a pipeline takes them as they lie.
  at::Tensor forward(const at::Tensor& x);
  // [B, T, C] of each; `hidden` as in Stage.
  std::vector<at::Tensor> extend(std::span<Sequences> all, std::vector<at::Tensor> hidden);

  nn::Unit<SplitTable> wte{nullptr};
  nn::Unit<SplitPositions> wpe{nullptr};
  SplitBlocks h{nullptr};
  nn::Unit<SplitNorm> ln_f{nullptr};
  std::shared_ptr<recompute::SpanTimes> span_times = std::make_shared<recompute::SpanTimes>();
  std::vector<double> branch_scales;  // of the blocks in training, as of Model; empty: all 1

 private:
  void check_length(std::int64_t tokens) const;
  at::Tensor embed(const at::Tensor& ids);
  std::vector<at::Tensor> embed(std::span<Sequences> all);

  SplitOptions options_;
};
TORCH_MODULE(SplitTransformer);

// Ranks: those of the group call everything here together, with the same tokens. Random numbers
//        that are not a rank's own come from generators that agree.
class SplitGptImpl : public torch::nn::Cloneable<SplitGptImpl>, public Model, public Stage {
 public:
  // Weights are parts of those that Gpt(options) starts with. Throws ConfigError.
  SplitGptImpl(const GptOptions& options, const TensorRanks& ranks);
  void reset() override;

  const GptBlueprint& blueprint() const override { return blueprint_; }
  torch::nn::Module& module() override { return *this; }
  // Equal on all ranks.
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& targets) override;
  // Refused for models whose activations are parts of the sequence.
  std::vector<at::Tensor> next_logits(std::span<Sequences> all) override;
  std::vector<NamedWeight> file_weights() override;
  void join(comm::Group& tensor_ranks) override;
  Stage* as_stage() override { return this; }
  bool scale_branches(std::vector<double> scales) override;

  // Logits are this rank's part of the vocabulary.
  at::Tensor run(const at::Tensor& x) override;
  at::Tensor loss(const at::Tensor& logits, const at::Tensor& targets) override;
  std::vector<at::Tensor> extend(std::span<Sequences> all, std::vector<at::Tensor> hidden) override;
  std::vector<std::string> shared_by_ends() const override { return {"transformer.wte.weight"}; }

  const GptOptions& options() const { return blueprint_.options(); }
  SplitTransformer transformer{nullptr};

 private:
  void initialize();

  GptBlueprint blueprint_;
  std::shared_ptr<TensorRanks> ranks_;
};
TORCH_MODULE(SplitGpt);

}  // namespace capstan::models

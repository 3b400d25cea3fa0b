// A GPT-2 language model whose parts are units; written as if for one device.
// Shapes: B batch, T tokens, C width, V padded vocabulary.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <torch/nn/cloneable.h>

#include "capstan/models/gpt_blueprint.h"
#include "capstan/models/gpt_layers.h"
#include "capstan/models/model.h"
#include "capstan/nn/unit.h"
#include "capstan/recompute/span_times.h"

namespace capstan::models {

// The blocks in order, named 0, 1, …: not a ModuleList, whose clones would be others than our
// holders.
class BlockListImpl : public torch::nn::Cloneable<BlockListImpl> {
 public:
  explicit BlockListImpl(const GptOptions& options) : options_(options) { reset(); }
  void reset() override;

  std::vector<nn::Unit<Block>> blocks;

 private:
  GptOptions options_;
};
TORCH_MODULE(BlockList);

// Everything below the output layer; a module of its own because files name it.
class TransformerImpl : public torch::nn::Cloneable<TransformerImpl> {
 public:
  explicit TransformerImpl(const GptOptions& options) : options_(options) { reset(); }
  void reset() override;
  // [B, T] -> [B, T, C]; a later stage of a pipeline takes [B, T, C].
  at::Tensor forward(const at::Tensor& x);
  // [B, T, C] of each; `hidden` as in Stage.
  std::vector<at::Tensor> extend(std::span<Sequences> all, std::vector<at::Tensor> hidden);

  void share_sequences(const sequence_parallel::GroupPtr& group);

  // Of a pipeline, wte is in the first stage and in the last, wpe in the first, ln_f in the last.
  nn::Unit<EmbeddingTable> wte{nullptr};
  nn::Unit<EmbeddingTable> wpe{nullptr};
  BlockList h{nullptr};
  nn::Unit<torch::nn::LayerNorm> ln_f{nullptr};
  std::shared_ptr<recompute::SpanTimes> span_times = std::make_shared<recompute::SpanTimes>();
  std::vector<double> branch_scales;  // of the blocks in training, as of Model; empty: all 1

 private:
  std::vector<at::Tensor> embed(std::span<Sequences> all);
  void check_length(std::int64_t tokens) const;

  GptOptions options_;
  sequence_parallel::GroupPtr sharing_;  // null: sequences are whole
};
TORCH_MODULE(Transformer);

class GptImpl : public torch::nn::Cloneable<GptImpl>, public Model, public Stage {
 public:
  // Weights as GPT-2 starts: normal with deviation 0.02, those that write into the residual stream
  // smaller by sqrt(2 layers). They depend on options.seed only. Throws ConfigError.
  explicit GptImpl(const GptOptions& options);
  void reset() override;

  // [B, T] -> [B, T, V]; T is at most options.context (else ConfigError).
  at::Tensor logits(const at::Tensor& ids) { return run(ids); }

  const GptBlueprint& blueprint() const override { return blueprint_; }
  torch::nn::Module& module() override { return *this; }
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& targets) override;
  std::vector<at::Tensor> next_logits(std::span<Sequences> all) override;
  std::vector<NamedWeight> file_weights() override;
  bool share_sequences(const sequence_parallel::GroupPtr& group) override;
  Stage* as_stage() override { return this; }
  bool scale_branches(std::vector<double> scales) override;

  at::Tensor run(const at::Tensor& x) override;
  at::Tensor loss(const at::Tensor& logits, const at::Tensor& targets) override;
  std::vector<at::Tensor> extend(std::span<Sequences> all, std::vector<at::Tensor> hidden) override;
  std::vector<std::string> shared_by_ends() const override { return {"transformer.wte.weight"}; }

  const GptOptions& options() const { return blueprint_.options(); }
  Transformer transformer{nullptr};

 private:
  void initialize();

  GptBlueprint blueprint_;
  sequence_parallel::GroupPtr sharing_;  // null: sequences are whole
};
TORCH_MODULE(Gpt);

}  // namespace capstan::models

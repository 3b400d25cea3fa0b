// A GPT-2 language model whose parts are units; written as if for one device.
// Shapes: B batch, T tokens, C width, V padded vocabulary.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <torch/nn/cloneable.h>

#include "capstan/models/gpt_layers.h"
#include "capstan/models/gpt_options.h"
#include "capstan/nn/unit.h"
#include "capstan/recompute/span_times.h"

namespace capstan::models {

// Token sequences of equal length that a model goes on with, and what it remembers of them.
struct Sequences {
  at::Tensor ids;               // [B, T]: the tokens that follow those remembered
  std::vector<KeyValues> seen;  // by block; empty: nothing is remembered

  std::int64_t seen_tokens() const { return seen.empty() ? 0 : seen.front().keys.size(2); }
};

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
  at::Tensor forward(const at::Tensor& ids);                 // [B, T] -> [B, T, C]
  std::vector<at::Tensor> extend(std::span<Sequences> all);  // [B, T, C] of each

  nn::Unit<EmbeddingTable> wte{nullptr};
  nn::Unit<EmbeddingTable> wpe{nullptr};
  BlockList h{nullptr};
  nn::Unit<torch::nn::LayerNorm> ln_f{nullptr};
  std::shared_ptr<recompute::SpanTimes> span_times = std::make_shared<recompute::SpanTimes>();

 private:
  at::Tensor run_blocks(at::Tensor x);
  void check_length(std::int64_t tokens) const;

  GptOptions options_;
};
TORCH_MODULE(Transformer);

class GptImpl : public torch::nn::Cloneable<GptImpl> {
 public:
  // Weights as GPT-2 starts: normal with deviation 0.02, those that write into the residual stream
  // smaller by sqrt(2 layers). They depend on options.seed only. Throws ConfigError.
  explicit GptImpl(const GptOptions& options);
  void reset() override;

  // [B, T] -> [B, T, V]; T is at most options.context (else ConfigError).
  at::Tensor logits(const at::Tensor& ids);

  // What may follow each of these: logits of their last tokens, [B, vocab]. `seen` takes `ids` in.
  // Every unit is used once for all of them, and also for none: a rank without work of its own
  // takes part in the others' gathers.
  std::vector<at::Tensor> next_logits(std::span<Sequences> all);

  // Mean cross-entropy in fp32 of `targets` [B, T], the token that follows each of `ids`; entries
  // of -100 are left out.
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& targets);

  const GptOptions& options() const { return options_; }
  Transformer transformer{nullptr};

 private:
  void initialize();

  GptOptions options_;
};
TORCH_MODULE(Gpt);

}  // namespace capstan::models

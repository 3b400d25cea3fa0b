// The layers of a GPT-2 block, with the names and shapes of Hugging Face's weight files.
// Shapes: B batch, T tokens, C width, V padded vocabulary.
#pragma once

#include <cstdint>
#include <vector>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include "capstan/models/gpt_options.h"
#include "capstan/models/sequences.h"
#include "capstan/sequence_parallel/exchange.h"

namespace capstan::models {

// Rows looked up by number; the token table is also the output layer (tied weights).
class EmbeddingTableImpl : public torch::nn::Cloneable<EmbeddingTableImpl> {
 public:
  // Rows from `used_rows` on exist inside only: zero, never trained, never the best logit.
  EmbeddingTableImpl(std::int64_t used_rows, std::int64_t all_rows, const GptOptions& options);
  void reset() override;

  at::Tensor forward(const at::Tensor& ids);    // any shape -> shape + [C]
  at::Tensor logits(const at::Tensor& hidden);  // [B, T, C] -> [B, T, V]

  at::Tensor weight;  // [all_rows, C]

 private:
  std::int64_t used_rows_;
  std::int64_t all_rows_;
  std::int64_t width_;
  bool loaded_later_;
  at::Tensor
      padding_;  // [V]: 0 for used rows, -infinity for the others; undefined if there are none
};
TORCH_MODULE(EmbeddingTable);

// x W + b with W of shape [in, out], as GPT-2's files have it.
class ProjectionImpl : public torch::nn::Cloneable<ProjectionImpl> {
 public:
  ProjectionImpl(std::int64_t in, std::int64_t out, const GptOptions& options)
      : in_(in), out_(out), loaded_later_(options.weights_loaded_later) {
    reset();
  }
  void reset() override;
  at::Tensor forward(const at::Tensor& x);  // [B, T, in] -> [B, T, out]

  at::Tensor weight;  // [in, out]
  at::Tensor bias;    // [out]

 private:
  std::int64_t in_;
  std::int64_t out_;
  bool loaded_later_;
};
TORCH_MODULE(Projection);

class AttentionImpl : public torch::nn::Cloneable<AttentionImpl> {
 public:
  explicit AttentionImpl(const GptOptions& options) : options_(options) { reset(); }
  void reset() override;
  at::Tensor forward(const at::Tensor& x);  // [B, T, C] -> [B, T, C]
  // The same for tokens that follow those in `seen`, which takes them in.
  at::Tensor extend(const at::Tensor& x, KeyValues& seen);
  // From here on forward() is given parts of sequences.
  void share_sequences(const sequence_parallel::GroupPtr& group) { sharing_ = group; }

 private:
  at::Tensor attend(const at::Tensor& x, KeyValues* seen);

  GptOptions options_;
  Projection c_attn_{nullptr};
  Projection c_proj_{nullptr};
  sequence_parallel::GroupPtr sharing_;  // null: sequences are whole
};
TORCH_MODULE(Attention);

class MlpImpl : public torch::nn::Cloneable<MlpImpl> {
 public:
  explicit MlpImpl(const GptOptions& options) : options_(options) { reset(); }
  void reset() override;
  at::Tensor forward(const at::Tensor& x);  // [B, T, C] -> [B, T, C]

 private:
  GptOptions options_;
  Projection c_fc_{nullptr};
  Projection c_proj_{nullptr};
};
TORCH_MODULE(Mlp);

class BlockImpl : public torch::nn::Cloneable<BlockImpl> {
 public:
  explicit BlockImpl(const GptOptions& options) : options_(options) { reset(); }
  void reset() override;
  at::Tensor forward(const at::Tensor& x);                  // [B, T, C] -> [B, T, C]
  at::Tensor extend(const at::Tensor& x, KeyValues& seen);  // as of attention
  void share_sequences(const sequence_parallel::GroupPtr& group) { attn_->share_sequences(group); }

 private:
  GptOptions options_;
  torch::nn::LayerNorm ln_1_{nullptr};
  Attention attn_{nullptr};
  torch::nn::LayerNorm ln_2_{nullptr};
  Mlp mlp_{nullptr};
};
TORCH_MODULE(Block);

// Attention of some heads. `qkv`: queries, keys and values, each [B, T, heads x width]; gives the
// same shape. Keys and values of tokens before these come from `seen`, which takes these in; null:
// there are none, and ranks may share the sequence.
struct HeadsOf {
  std::int64_t heads = 0;
  std::int64_t width = 0;
  double dropout = 0;
  sequence_parallel::GroupPtr sharing =
      {};  // ranks that have parts of the sequence; null: it is whole
};
at::Tensor attend_heads(const std::vector<at::Tensor>& qkv, const HeadsOf& sizes, KeyValues* seen);

// Until it is loaded, a weight that is loaded later takes no memory.
at::Tensor zero_weight(at::IntArrayRef sizes, bool loaded_later);

// A layer norm over the last dim, with the model's epsilon.
torch::nn::LayerNorm make_layer_norm(const GptOptions& options);

}  // namespace capstan::models

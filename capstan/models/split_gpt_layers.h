// The layers of a GPT-2 block, each tensor rank with its part of them. Parameters have the shapes
// of parts of Hugging Face's weights. Shapes: B batch, T tokens, C width; outside of these layers
// activations are [B, T, C] on every rank, or [B, part of T, C].
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include "capstan/models/gpt_layers.h"
#include "capstan/models/gpt_options.h"
#include "capstan/models/sequences.h"
#include "capstan/tensor_parallel/heads.h"
#include "capstan/tensor_parallel/region.h"

namespace capstan::models {

// The ranks that share a model. Their group is told once it exists, before the first use.
struct TensorRanks {
  tensor_parallel::Place place;
  // Activations outside of split layers are parts of the sequence: 1/T of their memory, for the
  // same traffic. T divides the number of tokens.
  bool sequence_parts = false;
  comm::Group* group = nullptr;  // outlives the model's graphs

  // Throws ConfigError while there is no group.
  tensor_parallel::Region region() const;
  // With activations that are whole outside: to go on with single tokens.
  tensor_parallel::Region whole() const;
};
using SharedRanks = std::shared_ptr<const TensorRanks>;

// What every split layer is made of.
struct SplitOptions {
  GptOptions gpt;
  SharedRanks ranks;
};

// Every rank has all of it, and uses it for what it has of the activations.
class SplitNormImpl : public torch::nn::Cloneable<SplitNormImpl> {
 public:
  explicit SplitNormImpl(SplitOptions options) : options_(std::move(options)) { reset(); }
  void reset() override;
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;  // [C]
  at::Tensor bias;    // [C]

 private:
  SplitOptions options_;
};
TORCH_MODULE(SplitNorm);

// Positions: every rank has all rows.
class SplitPositionsImpl : public torch::nn::Cloneable<SplitPositionsImpl> {
 public:
  explicit SplitPositionsImpl(SplitOptions options) : options_(std::move(options)) { reset(); }
  void reset() override;
  at::Tensor forward(const at::Tensor& positions);  // [1, T] -> [1, T, C]

  at::Tensor weight;  // [context, C]

 private:
  SplitOptions options_;
};
TORCH_MODULE(SplitPositions);

// Tokens: each rank has some rows; also the output layer (tied weights).
class SplitTableImpl : public torch::nn::Cloneable<SplitTableImpl> {
 public:
  explicit SplitTableImpl(SplitOptions options) : options_(std::move(options)) { reset(); }
  void reset() override;
  at::Tensor forward(const at::Tensor& ids);        // [B, T] -> as activations lie outside
  at::Tensor look_up(const at::Tensor& ids);        // [B, T] -> [B, T, C]
  at::Tensor logits(const at::Tensor& hidden);      // -> [B, T, this rank's rows]
  at::Tensor all_logits(const at::Tensor& hidden);  // [B, T, C] -> [B, T, vocabulary], on all ranks

  const tensor_parallel::VocabCut& cut() const { return cut_; }
  at::Tensor weight;  // [rows, C]

 private:
  SplitOptions options_;
  tensor_parallel::VocabCut cut_;
};
TORCH_MODULE(SplitTable);

// x W + b with W of shape [in, out], of which a rank has some columns (the next layer takes its
// part of the result), or some rows (the result is summed over ranks, and b is whole).
class SplitProjectionImpl : public torch::nn::Cloneable<SplitProjectionImpl> {
 public:
  SplitProjectionImpl(tensor_parallel::WeightCut cut, SplitOptions options)
      : cut_(std::move(cut)), options_(std::move(options)) {
    reset();
  }
  void reset() override;
  at::Tensor forward(const at::Tensor& x, const tensor_parallel::Region& region);

  const tensor_parallel::WeightCut& cut() const { return cut_; }
  at::Tensor weight;
  at::Tensor bias;

 private:
  tensor_parallel::WeightCut cut_;
  SplitOptions options_;
};
TORCH_MODULE(SplitProjection);

// Queries, keys and values of this rank's heads, in one product. They lie apart in files' fused
// weight, so they are parameters of their own.
class SplitQkvImpl : public torch::nn::Cloneable<SplitQkvImpl> {
 public:
  explicit SplitQkvImpl(SplitOptions options) : options_(std::move(options)) { reset(); }
  void reset() override;
  std::vector<at::Tensor> forward(const at::Tensor& x, const tensor_parallel::Region& region);

 private:
  SplitOptions options_;
  SplitProjection query_{nullptr};
  SplitProjection key_{nullptr};
  SplitProjection value_{nullptr};
};
TORCH_MODULE(SplitQkv);

class SplitAttentionImpl : public torch::nn::Cloneable<SplitAttentionImpl> {
 public:
  explicit SplitAttentionImpl(SplitOptions options) : options_(std::move(options)) { reset(); }
  void reset() override;
  // `seen`: as of attend_heads().
  at::Tensor forward(const at::Tensor& x, const tensor_parallel::Region& region, KeyValues* seen);

 private:
  SplitOptions options_;
  SplitQkv c_attn_{nullptr};
  SplitProjection c_proj_{nullptr};
};
TORCH_MODULE(SplitAttention);

class SplitMlpImpl : public torch::nn::Cloneable<SplitMlpImpl> {
 public:
  explicit SplitMlpImpl(SplitOptions options) : options_(std::move(options)) { reset(); }
  void reset() override;
  at::Tensor forward(const at::Tensor& x, const tensor_parallel::Region& region);

 private:
  SplitOptions options_;
  SplitProjection c_fc_{nullptr};
  SplitProjection c_proj_{nullptr};
};
TORCH_MODULE(SplitMlp);

class SplitBlockImpl : public torch::nn::Cloneable<SplitBlockImpl> {
 public:
  explicit SplitBlockImpl(SplitOptions options) : options_(std::move(options)) { reset(); }
  void reset() override;
  at::Tensor forward(const at::Tensor& x);
  at::Tensor extend(const at::Tensor& x, KeyValues& seen);  // [B, T, C] -> [B, T, C]

 private:
  at::Tensor run(const at::Tensor& x, const tensor_parallel::Region& region, KeyValues* seen);

  SplitOptions options_;
  SplitNorm ln_1_{nullptr};
  SplitAttention attn_{nullptr};
  SplitNorm ln_2_{nullptr};
  SplitMlp mlp_{nullptr};
};
TORCH_MODULE(SplitBlock);

// Of activations outside of split layers: the same mask on all ranks, or for each part its own.
at::Tensor outside_dropout(const at::Tensor& x, double share, bool training,
                           const tensor_parallel::Region& region);

}  // namespace capstan::models

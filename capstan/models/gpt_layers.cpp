#include "capstan/models/gpt_layers.h"

#include <limits>

#include <ATen/Functions.h>

#include "capstan/sequence_parallel/heads.h"

namespace capstan::models {
namespace {

// Of `tokens` that follow others, up to `all`: which of all each may look at.
at::Tensor causal_mask(std::int64_t tokens, std::int64_t all, const at::Tensor& like) {
  return at::ones({tokens, all}, like.options().dtype(at::kBool)).tril(all - tokens);
}

}  // namespace

// Elements of a weight that is loaded later are all the same one in memory.
at::Tensor zero_weight(at::IntArrayRef sizes, bool loaded_later) {
  return loaded_later ? at::zeros({}).expand(sizes) : at::zeros(sizes);
}

EmbeddingTableImpl::EmbeddingTableImpl(std::int64_t used_rows, std::int64_t all_rows,
                                       const GptOptions& options)
    : used_rows_(used_rows),
      all_rows_(all_rows),
      width_(options.width),
      loaded_later_(options.weights_loaded_later) {
  reset();
}

void EmbeddingTableImpl::reset() {
  weight = register_parameter("weight", zero_weight({all_rows_, width_}, loaded_later_));
  if (used_rows_ == all_rows_) return;
  at::Tensor padding = at::zeros({all_rows_});
  padding.narrow(0, used_rows_, all_rows_ - used_rows_)
      .fill_(-std::numeric_limits<float>::infinity());
  padding_ = register_buffer("padding", padding);
}

at::Tensor EmbeddingTableImpl::forward(const at::Tensor& ids) { return at::embedding(weight, ids); }

at::Tensor EmbeddingTableImpl::logits(const at::Tensor& hidden) {
  if (!padding_.defined()) return at::matmul(hidden, weight.t());
  // As the bias of the GEMM the mask costs no pass of its own over the logits.
  const at::Tensor rows = hidden.reshape({-1, width_});
  const at::Tensor out = at::addmm(padding_.to(rows.options()), rows, weight.t());
  return out.view({hidden.size(0), hidden.size(1), all_rows_});
}

void ProjectionImpl::reset() {
  weight = register_parameter("weight", zero_weight({in_, out_}, loaded_later_));
  bias = register_parameter("bias", at::zeros({out_}));
}

at::Tensor ProjectionImpl::forward(const at::Tensor& x) {
  return at::addmm(bias, x.reshape({-1, in_}), weight).view({x.size(0), x.size(1), out_});
}

void AttentionImpl::reset() {
  c_attn_ = register_module("c_attn", Projection(options_.width, 3 * options_.width, options_));
  c_proj_ = register_module("c_proj", Projection(options_.width, options_.width, options_));
}

at::Tensor AttentionImpl::forward(const at::Tensor& x) { return attend(x, nullptr); }

at::Tensor AttentionImpl::extend(const at::Tensor& x, KeyValues& seen) { return attend(x, &seen); }

at::Tensor attend_heads(const std::vector<at::Tensor>& qkv, const HeadsOf& sizes, KeyValues* seen) {
  const std::int64_t batch = qkv[0].size(0);
  const std::int64_t tokens = qkv[0].size(1);
  const auto heads = [&](const at::Tensor& part) {
    return part.view({batch, tokens, sizes.heads, sizes.width}).transpose(1, 2);
  };
  at::Tensor keys = heads(qkv[1]);
  at::Tensor values = heads(qkv[2]);
  if (seen != nullptr) {
    if (seen->keys.defined()) {
      keys = at::cat({seen->keys, keys}, /*dim=*/2);
      values = at::cat({seen->values, values}, /*dim=*/2);
    }
    *seen = {keys, values};
  }
  const bool first = keys.size(2) == tokens;
  at::Tensor mask;  // one token looks at all before it
  if (!first && tokens > 1) mask = causal_mask(tokens, keys.size(2), qkv[0]);
  const auto mix = [&](const sequence_parallel::Qkv& all) {
    return at::scaled_dot_product_attention(
        all.query, all.key, all.value,
        mask.defined() ? std::optional<at::Tensor>(mask) : std::nullopt, sizes.dropout,
        /*is_causal=*/first);
  };
  const sequence_parallel::Qkv ours{heads(qkv[0]), keys, values};
  const bool shares = sizes.sharing != nullptr && seen == nullptr;
  const at::Tensor mixed = shares ? sequence_parallel::attend(ours, mix, sizes.sharing) : mix(ours);
  return mixed.transpose(1, 2).reshape({batch, tokens, sizes.heads * sizes.width});
}

at::Tensor AttentionImpl::attend(const at::Tensor& x, KeyValues* seen) {
  const HeadsOf sizes{.heads = options_.heads,
                      .width = options_.width / options_.heads,
                      .dropout = is_training() ? options_.dropout : 0.0,
                      .sharing = sharing_};
  const at::Tensor joined = attend_heads(c_attn_(x).split(options_.width, /*dim=*/2), sizes, seen);
  return at::dropout(c_proj_(joined), options_.dropout, is_training());
}

void MlpImpl::reset() {
  c_fc_ = register_module("c_fc", Projection(options_.width, 4 * options_.width, options_));
  c_proj_ = register_module("c_proj", Projection(4 * options_.width, options_.width, options_));
}

at::Tensor MlpImpl::forward(const at::Tensor& x) {
  return at::dropout(c_proj_(at::gelu(c_fc_(x), "tanh")), options_.dropout, is_training());
}

torch::nn::LayerNorm make_layer_norm(const GptOptions& options) {
  return torch::nn::LayerNorm(
      torch::nn::LayerNormOptions({options.width}).eps(options.layer_norm_epsilon));
}

void BlockImpl::reset() {
  ln_1_ = register_module("ln_1", make_layer_norm(options_));
  attn_ = register_module("attn", Attention(options_));
  ln_2_ = register_module("ln_2", make_layer_norm(options_));
  mlp_ = register_module("mlp", Mlp(options_));
}

at::Tensor BlockImpl::forward(const at::Tensor& x) {
  const at::Tensor attended = x + attn_(ln_1_(x));
  return attended + mlp_(ln_2_(attended));
}

at::Tensor BlockImpl::extend(const at::Tensor& x, KeyValues& seen) {
  const at::Tensor attended = x + attn_->extend(ln_1_(x), seen);
  return attended + mlp_(ln_2_(attended));
}

}  // namespace capstan::models

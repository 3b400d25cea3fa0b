#include "capstan/models/split_gpt_layers.h"

#include <algorithm>
#include <optional>

#include <ATen/Functions.h>

#include "capstan/base/error.h"
#include "capstan/tensor_parallel/linear.h"
#include "capstan/tensor_parallel/operators.h"
#include "capstan/tensor_parallel/own_random.h"
#include "capstan/tensor_parallel/vocab_embedding.h"

namespace capstan::models {
namespace {

using tensor_parallel::OwnRandom;
using tensor_parallel::Region;
using tensor_parallel::WeightCut;

constexpr std::int64_t kTokenDim = 1;

tensor_parallel::HeadCut heads_of(const SplitOptions& options) {
  const GptOptions& gpt = options.gpt;
  return cut_heads({gpt.heads, gpt.heads, gpt.width / gpt.heads}, options.ranks->place);
}

// This rank's heads of the query (0), key (1) or value (2) columns of the fused weight.
WeightCut cut_of_qkv(const SplitOptions& options, std::int64_t which) {
  const std::int64_t width = options.gpt.width;
  const WeightCut fused = cut_fused_qkv({width, 3 * width}, 1, heads_of(options));
  // With one rank the three touch; each is a parameter all the same.
  WeightCut mine{fused.shape, 1, {}};
  for (auto range : fused.ranges) {
    range.begin = std::max(range.begin, which * width);
    range.end = std::min(range.end, (which + 1) * width);
    if (range.begin < range.end) mine.ranges.push_back(range);
  }
  return mine;
}

}  // namespace

Region TensorRanks::region() const {
  Region region = whole();
  if (sequence_parts) region.sequence_dim = kTokenDim;
  return region;
}

Region TensorRanks::whole() const {
  if (group != nullptr) return {group, {}};
  throw ConfigError({.what = "a model that is split over tensor ranks was used without their group",
                     .where = "models::SplitGpt",
                     .fix = "call join() with the tensor group of the mesh before the first use"});
}

at::Tensor outside_dropout(const at::Tensor& x, double share, bool training, const Region& region) {
  if (!training || share == 0) return x;
  std::optional<OwnRandom> own;
  if (region.sequence_dim) own.emplace(x.device(), region.group->rank());
  return at::dropout(x, share, training);
}

void SplitNormImpl::reset() {
  weight = register_parameter("weight", at::ones({options_.gpt.width}));
  bias = register_parameter("bias", at::zeros({options_.gpt.width}));
}

at::Tensor SplitNormImpl::forward(const at::Tensor& x) {
  const Region region = options_.ranks->region();
  return at::layer_norm(x, {options_.gpt.width}, outside(region, weight), outside(region, bias),
                        options_.gpt.layer_norm_epsilon);
}

void SplitPositionsImpl::reset() {
  weight = register_parameter("weight", zero_weight({options_.gpt.context, options_.gpt.width},
                                                    options_.gpt.weights_loaded_later));
}

at::Tensor SplitPositionsImpl::forward(const at::Tensor& positions) {
  return at::embedding(outside(options_.ranks->region(), weight), positions);
}

void SplitTableImpl::reset() {
  const GptOptions& gpt = options_.gpt;
  cut_ = tensor_parallel::cut_vocabulary(gpt.vocab, gpt.padded_vocab(), options_.ranks->place);
  weight = register_parameter("weight",
                              zero_weight({cut_.rows.size(), gpt.width}, gpt.weights_loaded_later));
}

at::Tensor SplitTableImpl::forward(const at::Tensor& ids) {
  return vocab_embedding(options_.ranks->region(), ids, weight, cut_);
}

at::Tensor SplitTableImpl::look_up(const at::Tensor& ids) {
  return vocab_embedding(options_.ranks->whole(), ids, weight, cut_);
}

at::Tensor SplitTableImpl::logits(const at::Tensor& hidden) {
  return column_linear(options_.ranks->region(), hidden, weight);
}

// Parts may differ by a row: each is made as long as the longest to travel.
at::Tensor SplitTableImpl::all_logits(const at::Tensor& hidden) {
  const Region region = options_.ranks->whole();
  const tensor_parallel::Place place = region.place();
  const std::int64_t longest = tensor_parallel::even_part(cut_.all, {0, place.ranks}).size();
  const at::Tensor mine = column_linear(region, hidden, weight);
  const at::Tensor all = tensor_parallel::gather_last(
      *region.group, at::constant_pad_nd(mine, {0, longest - mine.size(-1)}));
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < place.ranks; ++rank) {
    const auto rows = tensor_parallel::even_part(cut_.all, {rank, place.ranks});
    parts.push_back(all.narrow(-1, rank * longest, rows.size()));
  }
  return at::cat(parts, -1).narrow(-1, 0, cut_.used);
}

void SplitProjectionImpl::reset() {
  weight = register_parameter("weight",
                              zero_weight(cut_.local_shape(), options_.gpt.weights_loaded_later));
  bias = register_parameter("bias", at::zeros({cut_.local_shape()[1]}));
}

at::Tensor SplitProjectionImpl::forward(const at::Tensor& x, const Region& region) {
  return cut_.dim == 1 ? column_linear(region, x, weight.t(), bias)
                       : row_linear(region, x, weight.t(), bias);
}

void SplitQkvImpl::reset() {
  query_ = register_module("query", SplitProjection(cut_of_qkv(options_, 0), options_));
  key_ = register_module("key", SplitProjection(cut_of_qkv(options_, 1), options_));
  value_ = register_module("value", SplitProjection(cut_of_qkv(options_, 2), options_));
}

std::vector<at::Tensor> SplitQkvImpl::forward(const at::Tensor& x, const Region& region) {
  const at::Tensor weight = at::cat({query_->weight.t(), key_->weight.t(), value_->weight.t()});
  const at::Tensor bias = at::cat({query_->bias, key_->bias, value_->bias});
  return column_linear(region, x, weight, bias).split(query_->bias.size(0), /*dim=*/-1);
}

void SplitAttentionImpl::reset() {
  const std::int64_t width = options_.gpt.width;
  c_attn_ = register_module("c_attn", SplitQkv(options_));
  c_proj_ = register_module(
      "c_proj", SplitProjection(cut_queries({width, width}, 0, heads_of(options_)), options_));
}

at::Tensor SplitAttentionImpl::forward(const at::Tensor& x, const Region& region, KeyValues* seen) {
  const tensor_parallel::HeadCut heads = heads_of(options_);
  const double share = is_training() ? options_.gpt.dropout : 0.0;
  const std::vector<at::Tensor> qkv = c_attn_(x, region);
  at::Tensor joined;
  {
    std::optional<OwnRandom> own;
    if (share > 0) own.emplace(x.device(), region.group->rank());
    joined = attend_heads(
        qkv, {.heads = heads.query.size(), .width = heads.all.width, .dropout = share}, seen);
  }
  return outside_dropout(c_proj_(joined, region), share, is_training(), region);
}

void SplitMlpImpl::reset() {
  const std::int64_t width = options_.gpt.width;
  const tensor_parallel::Place place = options_.ranks->place;
  c_fc_ = register_module(
      "c_fc", SplitProjection(tensor_parallel::cut_evenly({width, 4 * width}, 1, place), options_));
  c_proj_ = register_module(
      "c_proj",
      SplitProjection(tensor_parallel::cut_evenly({4 * width, width}, 0, place), options_));
}

at::Tensor SplitMlpImpl::forward(const at::Tensor& x, const Region& region) {
  const at::Tensor hidden = at::gelu(c_fc_(x, region), "tanh");
  return outside_dropout(c_proj_(hidden, region), options_.gpt.dropout, is_training(), region);
}

void SplitBlockImpl::reset() {
  ln_1_ = register_module("ln_1", SplitNorm(options_));
  attn_ = register_module("attn", SplitAttention(options_));
  ln_2_ = register_module("ln_2", SplitNorm(options_));
  mlp_ = register_module("mlp", SplitMlp(options_));
}

at::Tensor SplitBlockImpl::run(const at::Tensor& x, const Region& region, KeyValues* seen) {
  const at::Tensor attended = x + attn_(ln_1_(x), region, seen);
  return attended + mlp_(ln_2_(attended), region);
}

at::Tensor SplitBlockImpl::forward(const at::Tensor& x) {
  return run(x, options_.ranks->region(), nullptr);
}

at::Tensor SplitBlockImpl::extend(const at::Tensor& x, KeyValues& seen) {
  return run(x, options_.ranks->whole(), &seen);
}

}  // namespace capstan::models

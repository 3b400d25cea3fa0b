#include "capstan/models/gpt.h"

#include <string>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/core/Reduction.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "capstan/base/error.h"
#include "capstan/models/block_spans.h"
#include "capstan/models/gpt_init.h"
#include "capstan/sequence_parallel/heads.h"
#include "capstan/sequence_parallel/mean.h"

namespace capstan::models {
namespace {

constexpr std::int64_t kLeftOut = -100;  // a target of nll_loss that counts for nothing

}  // namespace

void BlockListImpl::reset() {
  blocks.clear();
  for (std::int64_t i = options_.begin_block(); i < options_.end_block(); ++i) {
    blocks.push_back(register_module(std::to_string(i), nn::Unit<Block>(options_)));
  }
}

void TransformerImpl::reset() {
  if (options_.has_embeddings() || options_.has_output()) {
    wte = register_module(
        "wte", nn::Unit<EmbeddingTable>(options_.vocab, options_.padded_vocab(), options_));
  }
  if (options_.has_embeddings()) {
    wpe = register_module("wpe",
                          nn::Unit<EmbeddingTable>(options_.context, options_.context, options_));
  }
  h = register_module("h", BlockList(options_));
  if (!options_.has_output()) return;
  ln_f = register_module(
      "ln_f", nn::Unit<torch::nn::LayerNorm>(
                  torch::nn::LayerNormOptions({options_.width}).eps(options_.layer_norm_epsilon)));
}

void TransformerImpl::check_length(std::int64_t tokens) const {
  if (tokens <= options_.context) return;
  throw ConfigError({.what = "a sequence has " + std::to_string(tokens) + " tokens",
                     .where = "models::Gpt",
                     .fix = "give at most " + std::to_string(options_.context) +
                            ", or make the model with a longer context"});
}

at::Tensor TransformerImpl::forward(const at::Tensor& x) {
  at::Tensor hidden = x;
  if (options_.has_embeddings()) {
    const std::int64_t tokens = x.size(1);
    const std::int64_t begin = sharing_ == nullptr ? 0 : sharing_->rank() * tokens;
    check_length(sharing_ == nullptr ? tokens : sharing_->size() * tokens);
    const at::Tensor positions =
        at::arange(begin, begin + tokens, x.options().dtype(at::kLong)).unsqueeze(0);
    hidden = at::dropout(wte(x) + wpe(positions), options_.dropout, is_training());
  }
  hidden = run_blocks(h->blocks, hidden, options_.recompute, span_times,
                      is_training() ? branch_scales : std::vector<double>());
  return options_.has_output() ? ln_f(hidden) : hidden;
}

void TransformerImpl::share_sequences(const sequence_parallel::GroupPtr& group) {
  sharing_ = group;
  for (nn::Unit<Block>& block : h->blocks) block->share_sequences(group);
}

std::vector<at::Tensor> TransformerImpl::embed(std::span<Sequences> all) {
  std::vector<at::Tensor> ids;
  std::vector<at::Tensor> positions;
  for (Sequences& each : all) {
    const std::int64_t begin = each.seen_tokens();
    const std::int64_t end = begin + each.ids.size(1);
    check_length(end);
    ids.push_back(each.ids);
    positions.push_back(at::arange(begin, end, each.ids.options().dtype(at::kLong)).unsqueeze(0));
  }
  const auto look_up = [](EmbeddingTableImpl& table, const at::Tensor& rows, std::size_t) {
    return table.forward(rows);
  };
  std::vector<at::Tensor> hidden = call_each(wte, std::move(ids), look_up);
  const std::vector<at::Tensor> places = call_each(wpe, std::move(positions), look_up);
  for (std::size_t i = 0; i < hidden.size(); ++i) hidden[i] = hidden[i] + places[i];
  return hidden;
}

std::vector<at::Tensor> TransformerImpl::extend(std::span<Sequences> all,
                                                std::vector<at::Tensor> hidden) {
  if (options_.has_embeddings()) hidden = embed(all);
  for (Sequences& each : all) each.seen.resize(h->blocks.size());
  for (std::size_t layer = 0; layer < h->blocks.size(); ++layer) {
    hidden = call_each(h->blocks[layer], std::move(hidden),
                       [&](BlockImpl& block, const at::Tensor& x, std::size_t i) {
                         return block.extend(x, all[i].seen[layer]);
                       });
  }
  if (!options_.has_output()) return hidden;
  return call_each(ln_f, std::move(hidden),
                   [](torch::nn::LayerNormImpl& norm, const at::Tensor& x, std::size_t) {
                     return norm.forward(x);
                   });
}

GptImpl::GptImpl(const GptOptions& options) : blueprint_(options) {
  reset();
  if (!options.weights_loaded_later) initialize();
}

void GptImpl::reset() { transformer = register_module("transformer", Transformer(options())); }

// One generator for the whole model, used rows only: the same weights whatever the padding, the
// device or the state of libtorch's own generators, and in each stage of a pipeline.
void GptImpl::initialize() {
  const torch::autograd::AutoGradMode no_grad(false);
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(options().seed);
  const auto own = named_parameters();
  for (const DrawnWeight& drawn : drawn_weights(options())) {
    const at::Tensor* const mine = own.find(drawn.name);
    at::Tensor values =
        mine == nullptr ? at::empty(drawn.shape) : mine->narrow(0, 0, drawn.shape.front());
    values.normal_(0.0, start_deviation(drawn.name, options()), generator);
  }
}

at::Tensor GptImpl::run(const at::Tensor& x) {
  const at::Tensor hidden = transformer(x);
  if (!options().has_output()) return hidden;
  return transformer->wte.call(&EmbeddingTableImpl::logits, hidden);
}

std::vector<at::Tensor> GptImpl::next_logits(std::span<Sequences> all) { return extend(all, {}); }

std::vector<at::Tensor> GptImpl::extend(std::span<Sequences> all, std::vector<at::Tensor> hidden) {
  hidden = transformer->extend(all, std::move(hidden));
  if (!options().has_output()) return hidden;
  for (at::Tensor& each : hidden) each = each.narrow(1, each.size(1) - 1, 1);
  std::vector<at::Tensor> logits = call_each(
      transformer->wte, std::move(hidden),
      [](EmbeddingTableImpl& table, const at::Tensor& x, std::size_t) { return table.logits(x); });
  for (at::Tensor& each : logits) each = each.select(1, 0).narrow(1, 0, options().vocab);
  return logits;
}

bool GptImpl::share_sequences(const sequence_parallel::GroupPtr& group) {
  const int heads = static_cast<int>(options().heads);
  sequence_parallel::share_heads(heads, heads, group->size());  // throws where they cannot be
  sharing_ = group;
  transformer->share_sequences(group);
  return true;
}

bool GptImpl::scale_branches(std::vector<double> scales) {
  transformer->branch_scales = std::move(scales);
  return true;
}

std::vector<NamedWeight> GptImpl::file_weights() {
  std::vector<NamedWeight> weights;
  for (const auto& item : named_parameters()) {
    at::Tensor weight = item.value().detach();
    if (item.key() == "transformer.wte.weight") weight = weight.narrow(0, 0, options().vocab);
    weights.push_back({item.key(), weight});
  }
  return weights;
}

at::Tensor GptImpl::forward(const at::Tensor& ids, const at::Tensor& targets) {
  return loss(run(ids), targets);
}

at::Tensor GptImpl::loss(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor rows = logits.flatten(0, 1);
  // In fp32 whatever the model's dtype: sums of exponentials lose too much in 16 bits.
  const at::Tensor logs = at::log_softmax(rows, /*dim=*/1, at::kFloat);
  if (sharing_ == nullptr) return at::nll_loss(logs, targets.flatten());
  const at::Tensor sum = at::nll_loss(logs, targets.flatten(), {}, at::Reduction::Sum);
  return sequence_parallel::share_of_mean(sum, (targets != kLeftOut).sum(), sharing_);
}

}  // namespace capstan::models

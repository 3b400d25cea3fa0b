#include "capstan/models/split_gpt.h"

#include <map>
#include <optional>
#include <string>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "capstan/base/error.h"
#include "capstan/models/block_spans.h"
#include "capstan/models/gpt_init.h"
#include "capstan/tensor_parallel/cross_entropy.h"
#include "capstan/tensor_parallel/take.h"

namespace capstan::models {
namespace {

using tensor_parallel::Region;
using tensor_parallel::WeightCut;

// As files have it: queries, keys and values are one there.
std::string name_in_files(std::string name) {
  for (const std::string part : {"c_attn.query.", "c_attn.key.", "c_attn.value."}) {
    const std::size_t at = name.find(part);
    if (at != std::string::npos) return name.replace(at, part.size(), "c_attn.");
  }
  return name;
}

// Of the bias of such a weight: whole where inputs are cut.
std::optional<WeightCut> cut_of_bias(const WeightCut& weight) {
  if (weight.dim == 0) return std::nullopt;
  return WeightCut{{weight.shape[1]}, 0, weight.ranges};
}

}  // namespace

void SplitBlocksImpl::reset() {
  blocks.clear();
  for (std::int64_t i = options_.gpt.begin_block(); i < options_.gpt.end_block(); ++i) {
    blocks.push_back(register_module(std::to_string(i), nn::Unit<SplitBlock>(options_)));
  }
}

void SplitTransformerImpl::reset() {
  const GptOptions& gpt = options_.gpt;
  if (gpt.has_embeddings() || gpt.has_output()) {
    wte = register_module("wte", nn::Unit<SplitTable>(options_));
  }
  if (gpt.has_embeddings()) wpe = register_module("wpe", nn::Unit<SplitPositions>(options_));
  h = register_module("h", SplitBlocks(options_));
  if (gpt.has_output()) ln_f = register_module("ln_f", nn::Unit<SplitNorm>(options_));
}

void SplitTransformerImpl::check_length(std::int64_t tokens) const {
  const GptOptions& gpt = options_.gpt;
  const int ranks = options_.ranks->place.ranks;
  if (tokens > gpt.context) {
    throw ConfigError({.what = "a sequence has " + std::to_string(tokens) + " tokens",
                       .where = "models::SplitGpt",
                       .fix = "give at most " + std::to_string(gpt.context) +
                              ", or make the model with a longer context"});
  }
  if (!options_.ranks->sequence_parts || tokens % ranks == 0) return;
  throw ConfigError({.what = std::to_string(tokens) + " tokens cannot be shared evenly by " +
                             std::to_string(ranks) + " tensor ranks",
                     .where = "models::SplitGpt",
                     .fix = "give a number of tokens that the number of ranks divides, or keep "
                            "activations whole (sequence_parts = false)"});
}

at::Tensor SplitTransformerImpl::embed(const at::Tensor& ids) {
  const std::int64_t tokens = ids.size(1);
  check_length(tokens);
  const Region region = options_.ranks->region();
  at::Tensor positions = at::arange(tokens, ids.options().dtype(at::kLong)).unsqueeze(0);
  if (region.sequence_dim) {
    const std::int64_t part = tokens / region.group->size();
    positions = positions.narrow(1, region.group->rank() * part, part);
  }
  const at::Tensor embedded = wte(ids) + wpe(positions);
  return outside_dropout(embedded, options_.gpt.dropout, is_training(), region);
}

at::Tensor SplitTransformerImpl::forward(const at::Tensor& x) {
  at::Tensor hidden = options_.gpt.has_embeddings() ? embed(x) : x;
  hidden = run_blocks(h->blocks, hidden, options_.gpt.recompute, span_times,
                      is_training() ? branch_scales : std::vector<double>());
  return options_.gpt.has_output() ? ln_f(hidden) : hidden;
}

std::vector<at::Tensor> SplitTransformerImpl::embed(std::span<Sequences> all) {
  std::vector<at::Tensor> ids;
  std::vector<at::Tensor> positions;
  for (Sequences& each : all) {
    const std::int64_t begin = each.seen_tokens();
    const std::int64_t end = begin + each.ids.size(1);
    check_length(end);
    ids.push_back(each.ids);
    positions.push_back(at::arange(begin, end, each.ids.options().dtype(at::kLong)).unsqueeze(0));
  }
  std::vector<at::Tensor> hidden = call_each(
      wte, std::move(ids), [](SplitTableImpl& table, const at::Tensor& rows, std::size_t) {
        return table.look_up(rows);
      });
  const std::vector<at::Tensor> places =
      call_each(wpe, std::move(positions),
                [](SplitPositionsImpl& table, const at::Tensor& rows, std::size_t) {
                  return table.forward(rows);
                });
  for (std::size_t i = 0; i < hidden.size(); ++i) hidden[i] = hidden[i] + places[i];
  return hidden;
}

std::vector<at::Tensor> SplitTransformerImpl::extend(std::span<Sequences> all,
                                                     std::vector<at::Tensor> hidden) {
  if (options_.gpt.has_embeddings()) hidden = embed(all);
  for (Sequences& each : all) each.seen.resize(h->blocks.size());
  for (std::size_t layer = 0; layer < h->blocks.size(); ++layer) {
    hidden = call_each(h->blocks[layer], std::move(hidden),
                       [&](SplitBlockImpl& block, const at::Tensor& x, std::size_t i) {
                         return block.extend(x, all[i].seen[layer]);
                       });
  }
  if (!options_.gpt.has_output()) return hidden;
  return call_each(
      ln_f, std::move(hidden),
      [](SplitNormImpl& norm, const at::Tensor& x, std::size_t) { return norm.forward(x); });
}

SplitGptImpl::SplitGptImpl(const GptOptions& options, const TensorRanks& ranks)
    : blueprint_(options), ranks_(std::make_shared<TensorRanks>(ranks)) {
  reset();
  if (!options.weights_loaded_later) initialize();
}

void SplitGptImpl::reset() {
  transformer = register_module("transformer", SplitTransformer(SplitOptions{options(), ranks_}));
}

void SplitGptImpl::join(comm::Group& tensor_ranks) {
  const comm::Group& group = tensor_ranks;
  if (group.size() != ranks_->place.ranks || group.rank() != ranks_->place.rank) {
    throw ConfigError({.what = "a model made for rank " + std::to_string(ranks_->place.rank) +
                               " of " + std::to_string(ranks_->place.ranks) +
                               " joins another group",
                       .where = "group " + group.name(),
                       .fix = "give the group over the mesh's tensor axis"});
  }
  ranks_->group = &tensor_ranks;
}

// As Gpt does it: every whole weight is drawn, one at a time, and of each this rank keeps its part.
void SplitGptImpl::initialize() {
  const torch::autograd::AutoGradMode no_grad(false);
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(options().seed);
  const std::vector<NamedWeight> own = file_weights();
  for (const DrawnWeight& drawn : drawn_weights(options())) {
    const at::Tensor whole =
        at::empty(drawn.shape).normal_(0.0, start_deviation(drawn.name, options()), generator);
    for (const NamedWeight& each : own) {  // parts of a fused weight are several
      if (each.name != drawn.name || each.weight.numel() == 0) continue;
      each.weight.copy_(each.cut ? take(whole, first_rows(*each.cut, each.file_rows)) : whole);
    }
  }
}

at::Tensor SplitGptImpl::run(const at::Tensor& x) {
  const at::Tensor hidden = transformer(x);
  if (!options().has_output()) return hidden;
  return transformer->wte.call(&SplitTableImpl::logits, hidden);
}

at::Tensor SplitGptImpl::loss(const at::Tensor& logits, const at::Tensor& targets) {
  return cross_entropy(*ranks_->region().group, logits.flatten(0, 1), targets.flatten(),
                       transformer->wte->cut());
}

at::Tensor SplitGptImpl::forward(const at::Tensor& ids, const at::Tensor& targets) {
  return loss(run(ids), targets);
}

std::vector<at::Tensor> SplitGptImpl::next_logits(std::span<Sequences> all) {
  return extend(all, {});
}

std::vector<at::Tensor> SplitGptImpl::extend(std::span<Sequences> all,
                                             std::vector<at::Tensor> hidden) {
  if (ranks_->sequence_parts) {
    throw ConfigError({.what = "a model with parts of the sequence on each rank cannot generate",
                       .where = "models::SplitGpt",
                       .fix = "make the model with sequence_parts = false"});
  }
  hidden = transformer->extend(all, std::move(hidden));
  if (!options().has_output()) return hidden;
  for (at::Tensor& each : hidden) each = each.narrow(1, each.size(1) - 1, 1);
  std::vector<at::Tensor> logits = call_each(
      transformer->wte, std::move(hidden),
      [](SplitTableImpl& table, const at::Tensor& x, std::size_t) { return table.all_logits(x); });
  for (at::Tensor& each : logits) each = each.select(1, 0);
  return logits;
}

bool SplitGptImpl::scale_branches(std::vector<double> scales) {
  transformer->branch_scales = std::move(scales);
  return true;
}

std::vector<NamedWeight> SplitGptImpl::file_weights() {
  std::map<std::string, WeightCut> cuts;  // by the parameter's own name
  for (const auto& item : named_modules("", /*include_self=*/false)) {
    const auto* const projection = item.value()->as<SplitProjectionImpl>();
    if (projection == nullptr) continue;
    cuts[item.key() + ".weight"] = projection->cut();
    if (const auto bias = cut_of_bias(projection->cut())) cuts[item.key() + ".bias"] = *bias;
  }
  const std::string table = "transformer.wte.weight";
  if (!transformer->wte.is_empty()) {
    const tensor_parallel::VocabCut& vocabulary = transformer->wte->cut();
    cuts[table] = WeightCut{{vocabulary.all, options().width}, 0, {vocabulary.rows}};
  }
  std::vector<NamedWeight> weights;
  for (const auto& item : named_parameters()) {
    NamedWeight weight{name_in_files(item.key()), item.value().detach(), item.key()};
    if (const auto cut = cuts.find(item.key()); cut != cuts.end()) {
      weight.cut = cut->second;
      weight.file_rows = cut->second.shape[0];
    }
    if (item.key() == table) {
      weight.weight = weight.weight.narrow(0, 0, transformer->wte->cut().used_rows());
      weight.file_rows = options().vocab;
    }
    weights.push_back(std::move(weight));
  }
  return weights;
}

}  // namespace capstan::models

#include "capstan/cli/generate/decode.h"

#include <algorithm>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

namespace capstan::cli::generate {
namespace {

// The tokens from `begin` on, of every row.
at::Tensor ids_from(const std::vector<Tokens>& rows, std::int64_t begin, c10::Device device) {
  std::vector<std::int64_t> ids;
  for (const Tokens& row : rows) ids.insert(ids.end(), row.begin() + begin, row.end());
  const auto count = static_cast<std::int64_t>(rows.size());
  return at::tensor(ids, at::kLong).view({count, -1}).to(device);
}

// Beyond the context positions change with every token, so that nothing can be remembered.
void set_ids(models::Sequences& sequences, const Search& search, const DecodeOptions& options) {
  const auto length = static_cast<std::int64_t>(search.rows().front().size());
  const bool remembers = options.cache && length <= options.context;
  if (!remembers) sequences.seen.clear();
  const std::int64_t begin =
      remembers ? sequences.seen_tokens() : std::max<std::int64_t>(0, length - options.context);
  sequences.ids = ids_from(search.rows(), begin, options.device);
}

void follow(models::Sequences& sequences, const std::vector<std::int64_t>& parents) {
  const std::int64_t rows = sequences.ids.size(0);
  bool same = static_cast<std::int64_t>(parents.size()) == rows;
  for (std::size_t i = 0; same && i < parents.size(); ++i) {
    same = parents[i] == static_cast<std::int64_t>(i);
  }
  if (same) return;
  const at::Tensor index = at::tensor(parents, at::kLong).to(sequences.ids.device());
  for (models::KeyValues& seen : sequences.seen) {
    seen = {seen.keys.index_select(0, index), seen.values.index_select(0, index)};
  }
}

}  // namespace

void run_searches(std::span<const std::unique_ptr<Search>> searches, const NextLogits& next_logits,
                  const AnyRank& any_rank, const DecodeOptions& options) {
  const at::NoGradGuard no_grad;
  std::vector<models::Sequences> kept(searches.size());
  while (true) {
    std::vector<std::size_t> working;
    for (std::size_t i = 0; i < searches.size(); ++i) {
      if (static_cast<int>(working.size()) == options.batch) break;
      if (!searches[i]->done()) working.push_back(i);
    }
    if (!any_rank(!working.empty())) return;
    std::vector<models::Sequences> batch;
    batch.reserve(working.size());
    for (const std::size_t i : working) {
      set_ids(kept[i], *searches[i], options);
      batch.push_back(std::move(kept[i]));
    }
    const std::vector<at::Tensor> logits = next_logits(batch);
    for (std::size_t j = 0; j < working.size(); ++j) {
      Search& search = *searches[working[j]];
      const std::vector<std::int64_t> parents = search.advance(logits[j]);
      if (search.done()) continue;
      follow(batch[j], parents);
      kept[working[j]] = std::move(batch[j]);
    }
  }
}

}  // namespace capstan::cli::generate

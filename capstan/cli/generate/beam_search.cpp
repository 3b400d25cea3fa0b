#include "capstan/cli/generate/beam_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

namespace capstan::cli::generate {

BeamSearch::BeamSearch(Tokens prompt, const SearchOptions& options)
    : Search(std::move(prompt)), options_(options) {}

// So many that enough are left to go on with when all the best ones end.
std::vector<BeamSearch::Candidate> BeamSearch::best_candidates(const at::Tensor& logits) const {
  const std::int64_t vocab = logits.size(1);
  const at::Tensor sums = at::log_softmax(logits.to(at::kCPU), /*dim=*/1, at::kFloat) +
                          at::tensor(scores_, at::kFloat).unsqueeze(1);
  const auto factor =
      std::max<std::int64_t>(2, 1 + static_cast<std::int64_t>(options_.ends.size()));
  const auto [scores, places] =
      sums.flatten().topk(std::min(factor * options_.beams, sums.numel()));
  std::vector<Candidate> candidates;
  candidates.reserve(static_cast<std::size_t>(scores.numel()));
  for (std::int64_t i = 0; i < scores.numel(); ++i) {
    const auto place = places[i].item<std::int64_t>();
    candidates.push_back(
        {place / vocab, static_cast<data::Token>(place % vocab), scores[i].item<float>()});
  }
  return candidates;
}

bool BeamSearch::stops(const Candidate& candidate) const {
  return made_ == options_.max_new_tokens || std::find(options_.ends.begin(), options_.ends.end(),
                                                       candidate.token) != options_.ends.end();
}

Tokens BeamSearch::tokens_of(const Candidate& candidate) const {
  Tokens tokens = rows_[static_cast<std::size_t>(candidate.row)];
  tokens.push_back(candidate.token);
  return tokens;
}

void BeamSearch::complete(const Candidate& candidate) {
  const double length = std::pow(static_cast<double>(made_), options_.length_penalty);
  complete_.push_back({tokens_of(candidate), candidate.score / length});
  std::stable_sort(complete_.begin(), complete_.end(),
                   [](const Complete& a, const Complete& b) { return a.score > b.score; });
  if (static_cast<int>(complete_.size()) > options_.beams) complete_.pop_back();
}

// Whether the best row could still take the place of the worst complete text. Its score can only
// fall; with `never`, at whatever length suits it best.
bool BeamSearch::can_improve() const {
  if (!full()) return true;
  const bool longest =
      options_.early_stopping == EarlyStopping::never && options_.length_penalty > 0;
  const auto length = static_cast<double>(longest ? options_.max_new_tokens : made_);
  return scores_.front() / std::pow(length, options_.length_penalty) > complete_.back().score;
}

std::vector<std::int64_t> BeamSearch::advance(const at::Tensor& logits) {
  const std::vector<Candidate> candidates = best_candidates(logits);
  ++made_;
  const bool may_complete = !(full() && options_.early_stopping == EarlyStopping::yes);
  std::vector<Tokens> rows;
  std::vector<float> scores;
  std::vector<std::int64_t> parents;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const Candidate& each = candidates[i];
    if (stops(each)) {
      // Those behind the first `beams` are there to go on with only.
      if (may_complete && static_cast<int>(i) < options_.beams) complete(each);
    } else if (static_cast<int>(rows.size()) < options_.beams) {
      rows.push_back(tokens_of(each));
      scores.push_back(each.score);
      parents.push_back(each.row);
    }
  }
  done_ = rows.empty();
  if (done_) return {};
  rows_ = std::move(rows);
  scores_ = std::move(scores);
  done_ = !can_improve() || (full() && options_.early_stopping == EarlyStopping::yes);
  return parents;
}

}  // namespace capstan::cli::generate

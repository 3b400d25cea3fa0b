// Beam search: several texts in work; each pass keeps those with the highest probability. Scores,
// length penalty and the ways to end are those of Hugging Face's generate().
#pragma once

#include <vector>

#include "capstan/cli/generate/search.h"

namespace capstan::cli::generate {

class BeamSearch final : public Search {
 public:
  BeamSearch(Tokens prompt, const SearchOptions& options);

  std::vector<std::int64_t> advance(const at::Tensor& logits) override;
  Tokens best() const override { return complete_.front().tokens; }

 private:
  // A row and one more token.
  struct Candidate {
    std::int64_t row = 0;
    data::Token token = 0;
    float score = 0;  // logarithm of the probability of all that follows the prompt
  };
  struct Complete {
    Tokens tokens;
    double score = 0;  // by the length penalty
  };

  std::vector<Candidate> best_candidates(const at::Tensor& logits) const;
  bool stops(const Candidate& candidate) const;
  Tokens tokens_of(const Candidate& candidate) const;
  void complete(const Candidate& candidate);
  bool full() const { return static_cast<int>(complete_.size()) == options_.beams; }
  bool can_improve() const;

  SearchOptions options_;
  std::vector<float> scores_ = {0};  // by row
  std::vector<Complete> complete_;   // best first; at most `beams`
  std::int64_t made_ = 0;            // tokens after the prompt
};

}  // namespace capstan::cli::generate

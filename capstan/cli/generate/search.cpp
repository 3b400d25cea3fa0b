#include "capstan/cli/generate/search.h"

#include <algorithm>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>

#include "capstan/cli/generate/beam_search.h"

namespace capstan::cli::generate {
namespace {

// One row: each token is the likeliest, or drawn from a generator of the search's own, so that a
// text depends on nothing but its prompt and seed.
class TokenSearch final : public Search {
 public:
  TokenSearch(Tokens prompt, const SearchOptions& options)
      : Search(std::move(prompt)),
        options_(options),
        generator_(at::make_generator<at::CPUGeneratorImpl>(options.seed)) {}

  std::vector<std::int64_t> advance(const at::Tensor& logits) override {
    const at::Tensor row = logits.select(0, 0);
    const data::Token token =
        options_.sample ? draw_token(row, options_.draw, generator_) : likeliest_token(row);
    rows_.front().push_back(token);
    const bool ended =
        std::find(options_.ends.begin(), options_.ends.end(), token) != options_.ends.end();
    done_ = ++made_ == options_.max_new_tokens || ended;
    return {0};
  }
  Tokens best() const override { return rows_.front(); }

 private:
  SearchOptions options_;
  at::Generator generator_;
  std::int64_t made_ = 0;
};

}  // namespace

std::unique_ptr<Search> make_search(Tokens prompt, const SearchOptions& options) {
  if (options.beams > 1) return std::make_unique<BeamSearch>(std::move(prompt), options);
  return std::make_unique<TokenSearch>(std::move(prompt), options);
}

}  // namespace capstan::cli::generate

// One prompt on its way to a text. A search knows no model: it is given logits, decides which
// tokens follow, and says when it is done.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/cli/generate/choose_token.h"
#include "capstan/data/tokenizer.h"

namespace capstan::cli::generate {

using Tokens = std::vector<data::Token>;

// When beams end although their number of complete texts is there: yes; only when what goes on can
// hardly become better: no; only when it cannot: never.
enum class EarlyStopping { no, yes, never };

struct SearchOptions {
  std::int64_t max_new_tokens = 100;
  Tokens ends;          // a text is complete with any of these
  bool sample = false;  // draw; else the likeliest token
  DrawOptions draw;
  std::uint64_t seed = 1234;
  int beams = 1;  // above 1: not with `sample`
  double length_penalty = 1.0;
  EarlyStopping early_stopping = EarlyStopping::no;
};

class Search {
 public:
  virtual ~Search() = default;

  // Prompt and what follows it, of one text or of several in work; all of the same length.
  const std::vector<Tokens>& rows() const { return rows_; }
  bool done() const { return done_; }
  // logits: [rows, vocab]. Returns which of the rows before it each of the new rows continues.
  virtual std::vector<std::int64_t> advance(const at::Tensor& logits) = 0;
  // The text, prompt included, with its end token if it has one.
  virtual Tokens best() const = 0;

 protected:
  explicit Search(Tokens prompt) { rows_.push_back(std::move(prompt)); }

  std::vector<Tokens> rows_;
  bool done_ = false;
};

// `prompt` must not be empty.
std::unique_ptr<Search> make_search(Tokens prompt, const SearchOptions& options);

}  // namespace capstan::cli::generate

// Changes bytes so that a reader sees what nobody meant to write. Equal seeds give equal inputs.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace capstan::test {

// What mutations start from and insert.
struct Corpus {
  std::vector<std::string> texts;   // whole inputs, at least one
  std::vector<std::string> tokens;  // pieces that the reader gives a meaning
  std::vector<std::string> values;  // what may stand behind a colon; empty: the format has none
  std::size_t max_bytes = 20'000;
};

class Mutator {
 public:
  // `corpus` must outlive this.
  Mutator(std::uint64_t seed, const Corpus& corpus) : random_(seed), corpus_(corpus) {}

  std::string next() { return change(pick(corpus_.texts)); }
  // A quarter of the time as it is; otherwise after a few mutations.
  std::string change(std::string text);

  std::size_t below(std::size_t bound) { return bound == 0 ? 0 : random_() % bound; }
  const std::string& pick(const std::vector<std::string>& from) { return from[below(from.size())]; }

 private:
  void mutate(std::string& text);
  void replace_value(std::string& text);
  void replace_digits(std::string& text);
  void replace_binary(std::string& text);

  std::mt19937_64 random_;
  const Corpus& corpus_;
};

}  // namespace capstan::test

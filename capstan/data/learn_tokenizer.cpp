#include "capstan/data/learn_tokenizer.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <queue>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <nlohmann/json.hpp>

#include "capstan/base/error.h"
#include "capstan/data/byte_alphabet.h"
#include "capstan/data/gpt2_split.h"

namespace capstan::data {
namespace {

constexpr const char* kEndOfText = "<|endoftext|>";
constexpr std::int64_t kTokensBeforeMerges = 1 + 256;

using Pair = std::pair<Token, Token>;

// A piece of text between spaces, as tokens.
struct Word {
  std::vector<Token> tokens;
  std::int64_t count = 0;
};

struct PairHash {
  std::size_t operator()(const Pair& pair) const {
    return std::hash<std::uint64_t>()(std::uint64_t{pair.first} << 32U | pair.second);
  }
};

// A pair as it was counted once; stale if the count has changed since.
struct Candidate {
  std::int64_t count = 0;
  Pair pair;

  bool operator<(const Candidate& other) const {  // of equal counts the smallest pair is on top
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class PairCounts {
 public:
  explicit PairCounts(std::vector<Word> words) : words_(std::move(words)) {
    for (std::size_t i = 0; i < words_.size(); ++i) add(i, 1);
    for (const auto& [pair, count] : counts_) queue_.push({count, pair});
  }

  // The most frequent pair, if one comes at least twice.
  std::optional<Pair> best() {
    while (!queue_.empty()) {
      const Candidate top = queue_.top();
      queue_.pop();
      const std::int64_t count = counts_[top.pair];
      if (count == top.count) return count >= 2 ? std::optional(top.pair) : std::nullopt;
      queue_.push({count, top.pair});
    }
    return std::nullopt;
  }

  // Writes `token` for `pair` in every word.
  void merge(const Pair& pair, Token token) {
    std::set<Pair> made;
    for (const std::size_t index : std::exchange(places_[pair], {})) {
      std::vector<Token>& tokens = words_[index].tokens;
      add(index, -1);
      std::size_t kept = 0;
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        const bool here =
            i + 1 < tokens.size() && tokens[i] == pair.first && tokens[i + 1] == pair.second;
        tokens[kept++] = here ? token : tokens[i];
        if (here) ++i;
      }
      tokens.resize(kept);
      add(index, 1);
      for (std::size_t i = 1; i < kept; ++i) {
        if (tokens[i - 1] == token || tokens[i] == token) made.insert({tokens[i - 1], tokens[i]});
      }
    }
    for (const Pair& each : made) queue_.push({counts_[each], each});
  }

 private:
  // Counts the pairs of a word in, or with -1 out.
  void add(std::size_t index, std::int64_t sign) {
    const Word& word = words_[index];
    for (std::size_t i = 1; i < word.tokens.size(); ++i) {
      const Pair pair{word.tokens[i - 1], word.tokens[i]};
      counts_[pair] += sign * word.count;
      if (sign > 0) places_[pair].insert(index);
    }
  }

  std::vector<Word> words_;
  std::unordered_map<Pair, std::int64_t, PairHash> counts_;
  std::unordered_map<Pair, std::set<std::size_t>, PairHash> places_;  // may name a word too many
  std::priority_queue<Candidate> queue_;
};

// By token; those of the bytes in the order of their characters, as Hugging Face numbers them.
std::vector<std::string> texts_of_bytes() {
  std::vector<std::string> texts;
  for (int byte = 0; byte < 256; ++byte) {
    texts.push_back(character_of(static_cast<unsigned char>(byte)));
  }
  std::sort(texts.begin(), texts.end());  // UTF-8 sorts as its code points do
  texts.insert(texts.begin(), kEndOfText);
  return texts;
}

std::vector<Word> count_words(const std::vector<Document>& documents,
                              const std::vector<std::string>& texts) {
  std::map<std::string, std::int64_t, std::less<>> counts;
  std::int64_t left = kMaxLearntBytes;
  for (const Document& document : documents) {
    const std::string_view text =
        std::string_view(document.text).substr(0, static_cast<std::size_t>(left));
    left -= static_cast<std::int64_t>(text.size());
    for (const std::string_view piece : gpt2_split(text)) {
      const auto found = counts.find(piece);
      ++(found == counts.end() ? counts[std::string(piece)] : found->second);
    }
  }
  std::array<Token, 256> token_of_byte{};
  for (std::size_t token = 1; token < texts.size(); ++token) {
    token_of_byte[static_cast<unsigned char>(bytes_of(texts[token])->front())] =
        static_cast<Token>(token);
  }
  std::vector<Word> words;
  for (const auto& [piece, count] : counts) {
    Word word{{}, count};
    for (const char byte : piece) {
      word.tokens.push_back(token_of_byte[static_cast<unsigned char>(byte)]);
    }
    words.push_back(std::move(word));
  }
  return words;
}

using OrderedJson = nlohmann::ordered_json;

OrderedJson in_hugging_faces_form(const std::vector<std::string>& texts,
                                  const std::vector<Pair>& merges) {
  OrderedJson vocab = OrderedJson::object();
  for (std::size_t token = 0; token < texts.size(); ++token) vocab[texts[token]] = token;
  OrderedJson pairs = OrderedJson::array();
  for (const auto& [left, right] : merges) pairs.push_back({texts[left], texts[right]});
  const OrderedJson bytes = {{"type", "ByteLevel"},
                             {"add_prefix_space", false},
                             {"trim_offsets", true},
                             {"use_regex", true}};
  const OrderedJson end = {{"id", 0},         {"content", kEndOfText}, {"single_word", false},
                           {"lstrip", false}, {"rstrip", false},       {"normalized", false},
                           {"special", true}};
  const OrderedJson model = {{"type", "BPE"},
                             {"dropout", nullptr},
                             {"unk_token", nullptr},
                             {"continuing_subword_prefix", nullptr},
                             {"end_of_word_suffix", nullptr},
                             {"fuse_unk", false},
                             {"byte_fallback", false},
                             {"ignore_merges", false},
                             {"vocab", std::move(vocab)},
                             {"merges", std::move(pairs)}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", OrderedJson::array({end})},
          {"normalizer", nullptr},
          {"pre_tokenizer", bytes},
          {"post_processor", nullptr},
          {"decoder", bytes},
          {"model", model}};
}

}  // namespace

std::string learn_tokenizer(const std::vector<Document>& documents, std::int64_t vocab) {
  if (vocab < kTokensBeforeMerges) {
    throw ConfigError(
        {.what = "a vocabulary of " + std::to_string(vocab) + " tokens",
         .where = "learning a tokenizer",
         .fix = "choose at least 257: one for each byte and one for the end of text"});
  }
  std::vector<std::string> texts = texts_of_bytes();
  PairCounts pairs(count_words(documents, texts));
  std::map<std::string, Token> token_of_text;
  std::vector<Pair> merges;
  while (std::ssize(texts) < vocab) {
    const std::optional<Pair> pair = pairs.best();
    if (!pair) break;
    std::string text = texts[pair->first] + texts[pair->second];
    // Other neighbours may have become the same token before.
    const auto [known, is_new] = token_of_text.try_emplace(text, static_cast<Token>(texts.size()));
    if (is_new) texts.push_back(std::move(text));
    merges.push_back(*pair);
    pairs.merge(*pair, known->second);
  }
  return in_hugging_faces_form(texts, merges).dump(1) + "\n";
}

}  // namespace capstan::data

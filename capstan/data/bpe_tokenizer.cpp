#include "capstan/data/bpe_tokenizer.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "capstan/data/gpt2_split.h"

namespace capstan::data {
namespace {

// Chosen: ordinary text has far fewer different words; a stream of random bytes must not grow us.
constexpr std::size_t kCachedPieces = 1 << 16;

const AddedToken* added_at(std::string_view text, const std::vector<AddedToken>& added) {
  for (const AddedToken& each : added) {
    if (text.starts_with(each.text)) return &each;
  }
  return nullptr;
}

using OnText = std::function<void(std::string_view)>;

// Calls on_text for the text between added tokens and puts the tokens themselves into `out`.
void cut_at_added(std::string_view text, const std::vector<AddedToken>& added,
                  std::vector<Token>& out, const OnText& on_text) {
  std::size_t start = 0;
  for (std::size_t i = 0; !added.empty() && i < text.size();) {
    const AddedToken* const found = added_at(text.substr(i), added);
    if (found == nullptr) {
      ++i;
      continue;
    }
    if (i > start) on_text(text.substr(start, i - start));
    out.push_back(found->token);
    i += found->text.size();
    start = i;
  }
  if (start < text.size()) on_text(text.substr(start));
}

}  // namespace

BpeTokenizer::BpeTokenizer(BpeModel model) : model_(std::move(model)) {
  for (const AddedToken& each : model_.added) {
    (each.normalized ? second_pass_ : first_pass_).push_back(each);
  }
  const auto longer = [](const AddedToken& a, const AddedToken& b) {
    return a.text.size() > b.text.size();
  };
  std::stable_sort(first_pass_.begin(), first_pass_.end(), longer);
  std::stable_sort(second_pass_.begin(), second_pass_.end(), longer);
}

std::vector<Token> BpeTokenizer::encode(std::string_view text) {
  std::vector<Token> out;
  cut_at_added(text, first_pass_, out, [&](std::string_view outer) {
    cut_at_added(outer, second_pass_, out,
                 [&](std::string_view plain) { encode_plain(plain, out); });
  });
  return out;
}

void BpeTokenizer::encode_plain(std::string_view text, std::vector<Token>& out) {
  std::string with_space;
  if (model_.prefix_space && !text.starts_with(' ')) {
    with_space.push_back(' ');
    with_space.append(text);
    text = with_space;
  }
  if (!model_.split) return encode_piece(text, out);
  for (const std::string_view piece : gpt2_split(text)) encode_piece(piece, out);
}

void BpeTokenizer::encode_piece(std::string_view piece, std::vector<Token>& out) {
  const auto [entry, is_new] = cache_.try_emplace(std::string(piece));
  if (is_new) {
    std::vector<Token> symbols;
    for (const char byte : piece) {
      const auto token = model_.token_of_byte[static_cast<unsigned char>(byte)];
      if (token) symbols.push_back(*token);
    }
    entry->second = merge_pairs(model_.merges, symbols);
  }
  out.insert(out.end(), entry->second.begin(), entry->second.end());
  if (cache_.size() > kCachedPieces) cache_.clear();
}

std::string BpeTokenizer::decode(std::span<const Token> tokens) const {
  std::string text;
  for (const Token token : tokens) {
    if (token < model_.bytes_of_token.size()) text += model_.bytes_of_token[token];
  }
  return text;
}

std::int64_t BpeTokenizer::vocab() const {
  return static_cast<std::int64_t>(model_.bytes_of_token.size());
}

}  // namespace capstan::data

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include "capstan/base/error.h"
#include "capstan/data/bpe_tokenizer.h"
#include "capstan/data/byte_alphabet.h"
#include "capstan/data/tokenizer.h"

namespace capstan::data {
namespace {

using Json = nlohmann::json;

// Numbers without a token: a few are usual, most of them are a mistake.
constexpr std::uint64_t kGapsPerToken = 16;
constexpr std::uint64_t kFreeGaps = 65'536;

// One tokenizer.json being read; knows its name for messages.
class TokenizerFile {
 public:
  TokenizerFile(std::string_view json, std::string where) : where_(std::move(where)) {
    try {
      json_ = Json::parse(json);
    } catch (const Json::exception& error) {
      refuse(std::string("not JSON: ") + error.what(), "");
    }
  }

  BpeModel model() {
    try {
      check_kind();
      read_vocab();
      read_added();
      read_merges();
      read_pre_tokenizer();
    } catch (const Json::exception& error) {
      refuse(std::string("a field is missing or of the wrong type: ") + error.what(), "");
    }
    return std::move(model_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what, const std::string& field) const {
    throw ConfigError({.what = what,
                       .where = where_ + (field.empty() ? "" : ": " + field),
                       .fix =
                           "use a byte-level BPE tokenizer such as GPT-2's, or tokenize the text "
                           "beforehand into a .bin file"});
  }

  // Absent, null, false and empty all mean that the feature is off.
  static bool is_off(const Json& object, const char* key) {
    const auto found = object.find(key);
    return found == object.end() || found->is_null() || *found == false || *found == "";
  }

  void check_kind() {
    if (!is_off(json_, "normalizer")) refuse("a normalizer is not supported", "normalizer");
    const Json& model = json_.at("model");
    if (model.value("type", "BPE") != "BPE") refuse("the model is not BPE", "model.type");
    for (const char* key : {"dropout", "unk_token", "continuing_subword_prefix",
                            "end_of_word_suffix", "byte_fallback", "ignore_merges"}) {
      if (!is_off(model, key)) refuse("this option is not supported", std::string("model.") + key);
    }
  }

  // A model has a row for every number up to the highest, so that gaps cost memory.
  Token token_number(const Json& value, const std::string& text, const char* field) const {
    const std::size_t tokens = json_.at("model").at("vocab").size() + added_count();
    const std::uint64_t most = kGapsPerToken * tokens + kFreeGaps;
    if (!value.is_number_integer() || value < 0 || value > most) {
      const std::string said = value.is_number() ? value.dump() : value.type_name();
      refuse("token \"" + text + "\" has the number " + said + ", but in a file of " +
                 std::to_string(tokens) + " tokens it must be from 0 to " + std::to_string(most),
             field);
    }
    return value.get<Token>();
  }
  std::size_t added_count() const {
    const auto found = json_.find("added_tokens");
    return found == json_.end() ? 0 : found->size();
  }

  void put_token(const std::string& text, Token token) {
    if (model_.bytes_of_token.size() <= token) model_.bytes_of_token.resize(token + 1);
    model_.bytes_of_token[token] = bytes_of(text).value_or(text);
  }

  void read_vocab() {
    for (const auto& [text, token] : json_.at("model").at("vocab").items()) {
      tokens_[text] = token_number(token, text, "model.vocab");
      put_token(text, tokens_[text]);
    }
    if (tokens_.empty()) refuse("the vocabulary is empty", "model.vocab");
    for (int byte = 0; byte < 256; ++byte) {
      const auto found = tokens_.find(character_of(static_cast<unsigned char>(byte)));
      if (found != tokens_.end()) {
        model_.token_of_byte[static_cast<std::size_t>(byte)] = found->second;
      }
    }
  }

  void read_added() {
    for (const Json& each : json_.value("added_tokens", Json::array())) {
      for (const char* key : {"single_word", "lstrip", "rstrip"}) {
        if (!is_off(each, key)) {
          refuse("this option is not supported", std::string("added_tokens.") + key);
        }
      }
      const std::string text = each.at("content");
      if (text.empty()) refuse("an added token is empty", "added_tokens");
      const AddedToken added = {text, token_number(each.at("id"), text, "added_tokens.id"),
                                each.value("normalized", false)};
      put_token(added.text, added.token);
      model_.added.push_back(added);
      const bool is_end = added.text == "<|endoftext|>";
      const bool first_special = each.value("special", false) && !model_.end_of_text;
      if (is_end || first_special) model_.end_of_text = added.token;
    }
  }

  void read_merges() {
    std::uint32_t rank = 0;
    for (const Json& each : json_.at("model").at("merges")) {
      std::string left;
      std::string right;
      if (each.is_string()) {
        const auto text = each.get<std::string>();
        const std::size_t space = text.find(' ');
        if (space == std::string::npos) refuse("a merge has no space: " + text, "model.merges");
        left = text.substr(0, space);
        right = text.substr(space + 1);
      } else {
        left = each.at(0);
        right = each.at(1);
      }
      const Token left_token = token_of(left);
      const Token right_token = token_of(right);
      model_.merges.add(left_token, right_token, {rank++, token_of(left + right)});
    }
  }

  Token token_of(const std::string& text) const {
    const auto found = tokens_.find(text);
    if (found == tokens_.end()) {
      refuse("a merge names \"" + text + "\", which is not in the vocabulary", "model.merges");
    }
    return found->second;
  }

  void read_pre_tokenizer() {
    const Json& pre = json_.at("pre_tokenizer");
    if (!pre.is_object() || pre.value("type", "") != "ByteLevel") {
      refuse("only the ByteLevel pre-tokenizer is supported", "pre_tokenizer.type");
    }
    model_.prefix_space = pre.value("add_prefix_space", true);
    model_.split = pre.value("use_regex", true);
  }

  std::string where_;
  Json json_;
  std::map<std::string, Token> tokens_;  // by the text in the file
  BpeModel model_;
};

}  // namespace

std::unique_ptr<Tokenizer> read_tokenizer(std::string_view json, const std::string& where) {
  return std::make_unique<BpeTokenizer>(TokenizerFile(json, where).model());
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& tokenizer_json) {
  std::ifstream file(tokenizer_json, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) {
    throw IoError({.what = std::string("cannot open the tokenizer: ") + std::strerror(errno),
                   .where = tokenizer_json.string(),
                   .fix = "give the path of a tokenizer.json"});
  }
  return read_tokenizer(text, tokenizer_json.string());
}

}  // namespace capstan::data

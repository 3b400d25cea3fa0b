#include "capstan/data/tokenizer.h"

#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/data/byte_alphabet.h"
#include "capstan/data/byte_pairs.h"
#include "tests/support/temp_folder.h"

namespace capstan::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kSmall = R"({
  "added_tokens": [{"id": 9, "content": "<|endoftext|>", "special": true, "normalized": false,
                    "single_word": false, "lstrip": false, "rstrip": false}],
  "normalizer": null, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
  "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
    "vocab": {"h": 0, "e": 1, "l": 2, "o": 3, "Ġ": 4, "he": 5, "ll": 6, "hell": 7, "Ġhell": 8},
    "merges": ["h e", "l l", ["he", "ll"], "Ġ hell"]}})";

class TokenizerJson : public testing::Test {
 protected:
  std::unique_ptr<Tokenizer> load(const std::string& json) {
    std::ofstream(path_) << json;
    return load_tokenizer(path_);
  }
  std::string refusal(std::string json, const std::string& from, const std::string& to) {
    json.replace(json.find(from), from.size(), to);
    try {
      load(json);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  }
  test::TempFolder folder_;
  std::filesystem::path path_ = folder_.path() / "tokenizer.json";
};

TEST(ByteTokenizer, GivesEachByteBack) {
  ByteTokenizer bytes;
  std::string all;
  for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
  const auto tokens = bytes.encode(all);
  ASSERT_EQ(tokens.size(), 256U);
  EXPECT_EQ(tokens[200], 200U);
  EXPECT_EQ(bytes.decode(tokens), all);
  EXPECT_EQ(bytes.vocab(), 256);
}

TEST(ByteAlphabet, HasACharacterForEveryByte) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string character = character_of(static_cast<unsigned char>(byte));
    EXPECT_EQ(bytes_of(character), std::string(1, static_cast<char>(byte)));
  }
  EXPECT_EQ(character_of(' '), "Ġ");
  EXPECT_EQ(bytes_of("a b"), std::nullopt);
}

TEST(MergePairs, TakesTheLowestRankFirstAndTheLeftmostOfEquals) {
  MergeTable table;
  table.add(1, 1, {5, 10});
  table.add(1, 2, {3, 11});
  EXPECT_THAT(merge_pairs(table, std::vector<Token>{1, 1, 1, 2}), ElementsAre(10, 11));
  EXPECT_THAT(merge_pairs(table, std::vector<Token>{1, 1, 1}), ElementsAre(10, 1));
  EXPECT_TRUE(merge_pairs(table, {}).empty());
}

TEST_F(TokenizerJson, MergesAndDecodes) {
  const auto tokenizer = load(kSmall);
  EXPECT_THAT(tokenizer->encode("hello hello"), ElementsAre(7, 3, 8, 3));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("hello hello")), "hello hello");
  EXPECT_EQ(tokenizer->vocab(), 10);
  EXPECT_EQ(tokenizer->end_of_text(), 9U);
}

TEST_F(TokenizerJson, FindsAddedTokensFirst) {
  const auto tokenizer = load(kSmall);
  EXPECT_THAT(tokenizer->encode("he<|endoftext|>o<|endoftext|>"), ElementsAre(5, 9, 3, 9));
}

TEST_F(TokenizerJson, IgnoresTokensOutsideTheVocabularyWhenDecoding) {
  EXPECT_EQ(load(kSmall)->decode(std::vector<Token>{0, 127, 1}), "he");
}

TEST_F(TokenizerJson, NamesWhatItDoesNotSupport) {
  EXPECT_THAT(refusal(kSmall, R"("normalizer": null)", R"("normalizer": {"type": "NFC"})"),
              HasSubstr("tokenizer.json: normalizer"));
  EXPECT_THAT(refusal(kSmall, R"("type": "BPE")", R"("type": "Unigram")"), HasSubstr("model.type"));
  EXPECT_THAT(refusal(kSmall, R"("type": "ByteLevel")", R"("type": "Metaspace")"),
              HasSubstr("pre_tokenizer.type"));
  EXPECT_THAT(refusal(kSmall, R"("unk_token": null)", R"("unk_token": "?")"),
              HasSubstr("model.unk_token"));
  EXPECT_THAT(refusal(kSmall, R"("lstrip": false)", R"("lstrip": true)"),
              HasSubstr("added_tokens.lstrip"));
  EXPECT_THAT(refusal(kSmall, R"("l l")", R"("l x")"), HasSubstr("\"x\""));
  EXPECT_THAT(refusal(kSmall, R"("merges")", R"("marges")"), HasSubstr("merges"));
  EXPECT_THAT(refusal(kSmall, "{", ""), HasSubstr("not JSON"));
  EXPECT_THROW(load_tokenizer(folder_.path() / "absent.json"), IoError);
}

TEST_F(TokenizerJson, NumbersThatWouldNeedMoreMemoryThanTheFileIsWorthAreRefused) {
  for (const char* const number : {"-1", "4000000000", "4294967296", "1e3", "9223372036854775807",
                                   "18446744073709551615", "\"5\"", "null", "100000"}) {
    EXPECT_THAT(refusal(kSmall, R"("he": 5)", std::string(R"("he": )") + number),
                testing::AllOf(HasSubstr("token \"he\" has the number"), HasSubstr("model.vocab")));
    EXPECT_THAT(refusal(kSmall, R"("id": 9)", std::string(R"("id": )") + number),
                HasSubstr("added_tokens.id"));
  }
  EXPECT_EQ(refusal(kSmall, R"("he": 5)", R"("he": 5000)"), "accepted");
  EXPECT_THAT(refusal(R"({"model": {"vocab": {}, "merges": []},
                          "pre_tokenizer": {"type": "ByteLevel"}})",
                      "", ""),
              HasSubstr("the vocabulary is empty"));
}

}  // namespace
}  // namespace capstan::data

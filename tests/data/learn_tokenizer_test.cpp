#include "capstan/data/learn_tokenizer.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/data/tokenizer.h"

namespace capstan::data {
namespace {

std::vector<Document> documents(const std::vector<std::string>& texts) {
  std::vector<Document> all;
  for (const std::string& text : texts) all.push_back({"a.txt", text});
  return all;
}

std::vector<std::string> pieces(const std::string& tokenizer_json, const std::string& text) {
  const auto tokenizer = read_tokenizer(tokenizer_json, "learnt");
  std::vector<std::string> all;
  for (const Token token : tokenizer->encode(text)) {
    all.push_back(tokenizer->decode(std::vector<Token>{token}));
  }
  return all;
}

TEST(LearnTokenizer, MergesTheMostFrequentNeighboursFirst) {
  // "ab" comes four times and "cd" three times: with room for one merge it is "ab".
  const auto texts = documents({"ab ab ab", "ab cd cd cd"});
  EXPECT_THAT(pieces(learn_tokenizer(texts, 258), "abcd"), testing::ElementsAre("ab", "c", "d"));
  EXPECT_THAT(pieces(learn_tokenizer(texts, 1000), "ab cd"), testing::ElementsAre("ab", " cd"));
}

TEST(LearnTokenizer, RepeatedLettersAreCountedAsTheyAreMerged) {
  EXPECT_THAT(pieces(learn_tokenizer(documents({"aaaaaaaa aaaa"}), 259), "aaaaa"),
              testing::ElementsAre("aaaa", "a"));
}

TEST(LearnTokenizer, StopsWhereNothingComesTwice) {
  const auto tokenizer = read_tokenizer(learn_tokenizer(documents({"abcdefg"}), 1000), "learnt");
  EXPECT_EQ(tokenizer->vocab(), 257);
  EXPECT_EQ(read_tokenizer(learn_tokenizer({}, 1000), "learnt")->vocab(), 257);
}

TEST(LearnTokenizer, EveryTextSurvivesAndTheEndOfTextIsKnown) {
  std::string bytes;
  for (int i = 1; i < 256; ++i) bytes.push_back(static_cast<char>(i));
  const auto tokenizer =
      read_tokenizer(learn_tokenizer(documents({"the number of the ranks", "the rank"}), 300), "");
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(bytes + "the ranks")), bytes + "the ranks");
  ASSERT_TRUE(tokenizer->end_of_text().has_value());
  EXPECT_EQ(tokenizer->encode("<|endoftext|>").front(), *tokenizer->end_of_text());
}

TEST(LearnTokenizer, RefusesAVocabularyWithoutRoomForTheBytes) {
  EXPECT_THROW(learn_tokenizer(documents({"text"}), 256), ConfigError);
}

}  // namespace
}  // namespace capstan::data

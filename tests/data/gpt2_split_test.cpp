#include "capstan/data/gpt2_split.h"

#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace capstan::data {
namespace {

using ::testing::ElementsAre;

TEST(Gpt2Split, CutsWordsNumbersAndSigns) {
  EXPECT_THAT(gpt2_split("Hello world, it's 42%!"),
              ElementsAre("Hello", " world", ",", " it", "'s", " 42", "%!"));
  EXPECT_THAT(gpt2_split("abc123def"), ElementsAre("abc", "123", "def"));
}

TEST(Gpt2Split, KnowsTheSevenContractionsOnly) {
  EXPECT_THAT(gpt2_split("we're I'll he'd x'y"),
              ElementsAre("we", "'re", " I", "'ll", " he", "'d", " x", "'", "y"));
  EXPECT_THAT(gpt2_split("it'S 's"), ElementsAre("it", "'", "S", " '", "s"));
}

TEST(Gpt2Split, LeavesTheLastSpaceToTheWordAfterIt) {
  EXPECT_THAT(gpt2_split("a   b"), ElementsAre("a", "  ", " b"));
  EXPECT_THAT(gpt2_split("a\n\nb"), ElementsAre("a", "\n", "\n", "b"));
  EXPECT_THAT(gpt2_split("a \n b"), ElementsAre("a", " \n", " b"));
  EXPECT_THAT(gpt2_split("a  "), ElementsAre("a", "  "));
  EXPECT_THAT(gpt2_split(" "), ElementsAre(" "));
  EXPECT_TRUE(gpt2_split("").empty());
}

TEST(Gpt2Split, KnowsLettersAndNumbersBeyondLatin) {
  EXPECT_THAT(gpt2_split("Ünïcode мир ٣٤ 你好…"),
              ElementsAre("Ünïcode", " мир", " ٣٤", " 你好", "…"));
  EXPECT_THAT(gpt2_split("a\u00a0b"), ElementsAre("a", "\u00a0", "b"));
}

TEST(Gpt2Split, LosesNothingOfAnyBytes) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    std::string bytes(random() % 40, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    std::string joined;
    for (const std::string_view piece : gpt2_split(bytes)) joined += piece;
    EXPECT_EQ(joined, bytes);
  }
}

}  // namespace
}  // namespace capstan::data

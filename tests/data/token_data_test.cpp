#include "capstan/data/token_data.h"

#include <fstream>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/data/windows.h"
#include "tests/support/temp_folder.h"

namespace capstan::data {
namespace {

using ::testing::ElementsAre;

std::vector<std::int64_t> read_all(const TokenData& data) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(data.size()));
  data.read(0, out);
  return out;
}

TokenData counting(int count) {
  std::vector<Token> tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 0);
  return TokenData(tokens, count);
}

template <typename Element>
std::filesystem::path write_bin(const std::filesystem::path& path, std::vector<Element> values) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(Element)));
  return path;
}

TEST(TokenData, HoldsTokensOfEverySize) {
  for (const Token largest : {255U, 65535U, 4000000000U}) {
    const std::vector<Token> tokens = {0, 1, largest};
    EXPECT_THAT(read_all(TokenData(tokens, static_cast<std::int64_t>(largest) + 1)),
                ElementsAre(0, 1, largest));
  }
}

TEST(TokenData, MapsFilesOfBothTypes) {
  const test::TempFolder folder;
  const auto small = write_bin<std::uint16_t>(folder.path() / "a.bin", {1, 65535, 3});
  EXPECT_THAT(read_all(TokenData::map_file(small, TokenType::uint16)), ElementsAre(1, 65535, 3));
  const auto large = write_bin<std::uint32_t>(folder.path() / "b.bin", {70000, 2});
  const TokenData data = TokenData::map_file(large, TokenType::uint32);
  std::filesystem::remove(large);  // the mapping outlives the name
  EXPECT_THAT(read_all(data.slice(1, 2)), ElementsAre(2));
}

TEST(TokenData, RefusesFilesThatAreNoTokens) {
  const test::TempFolder folder;
  const auto odd = write_bin<std::uint8_t>(folder.path() / "odd.bin", {1, 2, 3});
  EXPECT_THROW(TokenData::map_file(odd, TokenType::uint16), ConfigError);
  const auto empty = write_bin<std::uint8_t>(folder.path() / "empty.bin", {});
  EXPECT_THROW(TokenData::map_file(empty, TokenType::uint16), ConfigError);
  EXPECT_THROW(TokenData::map_file(folder.path() / "absent.bin", TokenType::uint16), IoError);
}

TEST(Windows, TargetsAreTheNextTokens) {
  const Windows windows(counting(10), /*length=*/3, /*vocab=*/10);
  EXPECT_EQ(windows.count(), 3);
  std::vector<std::int64_t> inputs(6);
  std::vector<std::int64_t> targets(6);
  windows.read(std::vector<std::int64_t>{2, 0}, inputs, targets);
  EXPECT_THAT(inputs, ElementsAre(6, 7, 8, 0, 1, 2));
  EXPECT_THAT(targets, ElementsAre(7, 8, 9, 1, 2, 3));
}

TEST(Windows, NeedOneTokenMoreThanTheirLength) {
  EXPECT_EQ(Windows(counting(4), 3, 10).count(), 1);
  EXPECT_THROW(Windows(counting(3), 3, 10), ConfigError);
}

TEST(Windows, NameTheTokenOutsideTheVocabulary) {
  const Windows windows(counting(10), 3, /*vocab=*/8);
  std::vector<std::int64_t> inputs(3);
  std::vector<std::int64_t> targets(3);
  try {
    windows.read(std::vector<std::int64_t>{2}, inputs, targets);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.info().what, testing::HasSubstr("token 8"));
    EXPECT_THAT(error.info().where, testing::HasSubstr("token 8"));
  }
}

TEST(SplitForValidation, KeepsTheEnd) {
  const SplitTokens split = split_for_validation(counting(100), 0.1, 5);
  EXPECT_EQ(split.train.size(), 90);
  EXPECT_EQ(read_all(split.validation).front(), 90);
  EXPECT_EQ(split_for_validation(counting(100), 0.01, 5).validation.size(), 5);
}

}  // namespace
}  // namespace capstan::data

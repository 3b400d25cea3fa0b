#include "capstan/monitor/event_file.h"

#include <cstring>
#include <fstream>
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/monitor/crc32c.h"
#include "tests/support/temp_folder.h"

namespace capstan::monitor {
namespace {

// From RFC 3720, appendix B.4.
TEST(Crc32c, HasTheValuesOfItsStandard) {
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43U);
  EXPECT_EQ(crc32c(""), 0U);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
}

std::uint32_t number_at(const std::string& bytes, std::size_t at) {
  std::uint32_t number = 0;
  std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}

// TensorBoard's own reader reads the same file in tests/cli/test_train_monitors.py.
TEST(EventFile, IsRecordsWithTheirLengthsAndChecksums) {
  const test::TempFolder folder;
  EventFile file(folder.path());
  file.write({{"Train/Samples/lr", 0.5, 300}, {"Train/Samples/train_loss", 2.25, 300}});
  std::ifstream in(file.path(), std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  std::vector<std::string> messages;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t length = number_at(bytes, at);
    EXPECT_EQ(number_at(bytes, at + 8), masked_crc32c(bytes.substr(at, 8)));
    messages.push_back(bytes.substr(at + 12, length));
    EXPECT_EQ(number_at(bytes, at + 12 + length), masked_crc32c(messages.back()));
    at += length + 16;
  }
  ASSERT_EQ(messages.size(), 3U);
  EXPECT_THAT(messages[0], testing::HasSubstr("brain.Event:2"));
  const std::string half = {0, 0, 0, 0x3F};
  EXPECT_THAT(messages[1], testing::EndsWith("Train/Samples/lr\x15" + half));
  EXPECT_THAT(messages[1], testing::HasSubstr("\x10\xAC\x02")) << "300 as a varint";
}

}  // namespace
}  // namespace capstan::monitor

#include "capstan/base/text.h"

#include <gtest/gtest.h>

namespace capstan {
namespace {

TEST(FormatBytes, UsesBinaryUnits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(std::int64_t{3} << 30), "3 GiB");
}

TEST(Counted, OneIsNotMany) {
  EXPECT_EQ(counted(1, "rank"), "1 rank");
  EXPECT_EQ(counted(0, "rank"), "0 ranks");
  EXPECT_EQ(counted(2, "process"), "2 processes");
}

TEST(Split, KeepsEmptyPieces) {
  EXPECT_EQ(split("a,,b", ','), (std::vector<std::string>{"a", "", "b"}));
  EXPECT_EQ(split("", ','), std::vector<std::string>{""});
}

TEST(NearestName, FindsTypingMistakesAndNothingElse) {
  const std::vector<std::string> known = {"stage", "offload_param", "offload_optimizer"};
  EXPECT_EQ(nearest_name("stge", known), "stage");
  EXPECT_EQ(nearest_name("offload_parm", known), "offload_param");
  EXPECT_EQ(nearest_name("banana", known), "");
  EXPECT_EQ(nearest_name("satge", known), "stage");  // a swap is one mistake
  EXPECT_EQ(nearest_name(std::string(1 << 20, 's'), known), "");
}

}  // namespace
}  // namespace capstan

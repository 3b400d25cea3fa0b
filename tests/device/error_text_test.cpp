#include "capstan/device/error_text.h"

#include <gmock/gmock.h>

namespace capstan::device {
namespace {

using testing::HasSubstr;

TEST(ErrorText, HasNoFramesOfLibtorch) {
  try {
    TORCH_CHECK(false, "shapes differ");
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("raised from"));
    EXPECT_EQ(error_text(error), "shapes differ");
    EXPECT_EQ(reason_of(error), "shapes differ");
  }
}

TEST(ErrorText, AReasonIsWhatHappenedAlone) {
  const ConfigError ours({.what = "no room", .where = "host", .fix = "free some"});
  EXPECT_EQ(reason_of(ours), "no room");
  EXPECT_THAT(error_text(ours), HasSubstr("fix:"));
  EXPECT_EQ(reason_of(std::runtime_error("plain")), "plain");
}

}  // namespace
}  // namespace capstan::device

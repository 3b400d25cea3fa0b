#include "capstan/base/error.h"

#include <string>

#include <gtest/gtest.h>

namespace capstan {
namespace {

TEST(Error, SaysWhatWhereAndFix) {
  const ConfigError error({.what = "stage is 7", .where = "zero.stage", .fix = "use 0, 1, 2 or 3"});
  EXPECT_STREQ(error.what(), "stage is 7\n  where: zero.stage\n  fix:   use 0, 1, 2 or 3");
  EXPECT_EQ(error.info().fix, "use 0, 1, 2 or 3");
}

TEST(Error, KnowsTheThrowingLineThroughTheInheritedConstructor) {
  const unsigned line = __LINE__ + 1;
  const InternalError error({.what = "x"});
  EXPECT_EQ(error.at().line(), line);
}

}  // namespace
}  // namespace capstan

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

TEST(RunGuarded, MapsKindsToExitCodes) {
  static std::string said;
  said.clear();
  const auto report = [](const std::string& text) { said = text; };
  EXPECT_EQ(run_guarded([](int, char**) { return 0; }, 0, nullptr, report), 0);
  EXPECT_EQ(said, "");
  EXPECT_EQ(run_guarded([](int, char**) -> int { throw ConfigError({.what = "bad"}); }, 0, nullptr,
                        report),
            2);
  EXPECT_EQ(said, "error: bad");
  EXPECT_EQ(run_guarded([](int, char**) -> int { throw InternalError({.what = "bug"}); }, 0,
                        nullptr, report),
            70);
  EXPECT_NE(said.find("error_test.cpp"), std::string::npos);
}

}  // namespace
}  // namespace capstan

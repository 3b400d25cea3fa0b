// How programs end: in this process for what is returned, in a program of its own for what ends it.
#include "capstan/base/guard.h"

#include <array>
#include <cstdio>
#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include "capstan/base/error.h"

namespace capstan {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct Ended {
  int code = 0;
  std::string said;  // on both outputs
};

Ended run_failing_program(const std::string& how) {
  const char* folder = std::getenv("CAPSTAN_BIN");
  const std::string command = std::string(folder == nullptr ? "." : folder) + "/fail " + how;
  FILE* const out = popen((command + " 2>&1").c_str(), "r");
  Ended ended;
  std::array<char, 4096> buffer{};
  while (const std::size_t got = std::fread(buffer.data(), 1, buffer.size(), out)) {
    ended.said.append(buffer.data(), got);
  }
  ended.code = WEXITSTATUS(pclose(out));
  return ended;
}

TEST(RunGuarded, AUsersMistakeEndsWithTwoAndNoStack) {
  const Ended ended = run_failing_program("config");
  EXPECT_EQ(ended.code, kExitUserError);
  EXPECT_THAT(ended.said, AllOf(HasSubstr("error: stage is 7\n  where: zero.stage\n  fix:   use 3"),
                                Not(HasSubstr("#0")), Not(HasSubstr("bug"))));
}

TEST(RunGuarded, OurBugEndsWithSeventyAndNamesTheCallsThatLedToIt) {
  for (const char* how : {"internal", "standard", "thread", "rethrown", "number"}) {
    const Ended ended = run_failing_program(how);
    EXPECT_EQ(ended.code, kExitInternalError) << how;
    EXPECT_THAT(ended.said, AllOf(HasSubstr("said before"), HasSubstr("internal error: "),
                                  HasSubstr("bug in capstan"), HasSubstr("inner_call("),
                                  HasSubstr("outer_call(")))
        << how;
  }
}

TEST(RunGuarded, AnInternalErrorAlsoNamesItsLine) {
  EXPECT_THAT(run_failing_program("internal").said, HasSubstr("tests/base/fail.cpp:"));
}

TEST(RunAndReport, ReturnsWhatTheBodyReturns) {
  const auto silent = [](const std::string& text) { ADD_FAILURE() << text; };
  EXPECT_EQ(run_and_report([](int count, char**) { return count; }, 5, nullptr, silent), 5);
}

}  // namespace
}  // namespace capstan

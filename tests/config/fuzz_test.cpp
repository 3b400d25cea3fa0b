#include "fuzz.h"

#include <gtest/gtest.h>

namespace capstan::config {
namespace {

TEST(Fuzz, NoInputEscapesAsAnythingButAConfigError) {
  const FuzzReport report = run_fuzz(10000, /*seed=*/20240229, fuzz_corpus());
  EXPECT_EQ(report.failure, "");
  EXPECT_EQ(report.inputs, 10000);
  // All three outcomes are reached often: the mutations are neither too tame nor too wild.
  EXPECT_GT(report.resolved, 500);
  EXPECT_GT(report.with_problems, 500);
  EXPECT_GT(report.unreadable, 1000);
}

TEST(Fuzz, EqualSeedsGiveEqualInputs) {
  const FuzzReport a = run_fuzz(500, 3, fuzz_corpus());
  const FuzzReport b = run_fuzz(500, 3, fuzz_corpus());
  EXPECT_EQ(a.resolved, b.resolved);
  EXPECT_EQ(a.with_problems, b.with_problems);
  EXPECT_EQ(a.unreadable, b.unreadable);
}

}  // namespace
}  // namespace capstan::config

#include "capstan/schedule/curriculum.h"

#include <gtest/gtest.h>

#include "capstan/base/error.h"

namespace capstan::schedule {
namespace {

Curriculum growing(Growth growth, std::int64_t root = 1) {
  return {.growth = growth, .min = 8, .max = 64, .total_steps = 100, .multiple = 8, .root = root};
}

std::string problem_of(const Curriculum& curriculum) {
  try {
    check(curriculum);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Curriculum, GrowsEvenlyFromItsMinimumToItsMaximum) {
  const Curriculum linear = growing(Growth::fixed_linear);
  EXPECT_EQ(problem_of(linear), "");
  EXPECT_EQ(difficulty_at(linear, 1), 8);
  EXPECT_EQ(difficulty_at(linear, 25), 16);
  EXPECT_EQ(difficulty_at(linear, 50), 32);
  EXPECT_EQ(difficulty_at(linear, 75), 48);
  EXPECT_EQ(difficulty_at(linear, 99), 56);
  EXPECT_EQ(difficulty_at(linear, 100), 64);
  EXPECT_EQ(difficulty_at(linear, 1'000'000), 64);
}

TEST(Curriculum, GrowsWithARootOfTheStep) {
  const Curriculum root = growing(Growth::fixed_root, 2);
  EXPECT_EQ(difficulty_at(root, 10), 24);
  EXPECT_EQ(difficulty_at(root, 25), 32);
  EXPECT_EQ(difficulty_at(root, 50), 40);
  EXPECT_EQ(difficulty_at(root, 75), 56);
  EXPECT_EQ(difficulty_at(root, 100), 64);
}

TEST(Curriculum, ClimbsTheStairsThatAreListed) {
  const Curriculum stairs = {.growth = Growth::fixed_discrete,
                             .min = 1,
                             .max = 5,
                             .difficulties = {1, 2, 5},
                             .last_steps = {2, 7}};
  EXPECT_EQ(problem_of(stairs), "");
  EXPECT_EQ(difficulty_at(stairs, 2), 1);
  EXPECT_EQ(difficulty_at(stairs, 3), 2);
  EXPECT_EQ(difficulty_at(stairs, 7), 2);
  EXPECT_EQ(difficulty_at(stairs, 8), 5);
}

TEST(Curriculum, StaysBetweenItsEndsWhereTheMultipleDoesNotDivideThem) {
  Curriculum odd = growing(Growth::fixed_linear);
  odd.min = 3;
  odd.max = 21;
  EXPECT_EQ(difficulty_at(odd, 0), 8);
  EXPECT_EQ(difficulty_at(odd, 1), 8);  // rounded down it would be 0
  EXPECT_EQ(difficulty_at(odd, 100), 21);
  odd.max = 7;  // below the first multiple
  EXPECT_EQ(difficulty_at(odd, 1), 7);
  odd.max = 21;
  for (std::int64_t step = 1; step <= 100; ++step) {
    EXPECT_GE(difficulty_at(odd, step), difficulty_at(odd, step - 1)) << step;
  }
}

TEST(Curriculum, SaysEverythingThatCannotWork) {
  const std::string nothing = problem_of({});
  for (const char* key : {"min_difficulty", "max_difficulty", "total_curriculum_step"}) {
    EXPECT_NE(nothing.find(key), std::string::npos) << key << ": " << nothing;
  }
  Curriculum falls = growing(Growth::fixed_linear);
  falls.max = 4;
  EXPECT_NE(problem_of(falls).find("max_difficulty 4 is below min_difficulty 8"),
            std::string::npos);
  const Curriculum lists = {.growth = Growth::fixed_discrete,
                            .min = 1,
                            .max = 5,
                            .difficulties = {3, 2},
                            .last_steps = {7, 7}};
  const std::string all = problem_of(lists);
  for (const char* words : {"one more than max_step", "difficulty falls", "max_step must rise"}) {
    EXPECT_NE(all.find(words), std::string::npos) << words << ": " << all;
  }
}

TEST(Curriculum, WarnsOfLengthsThatAreSlow) {
  Curriculum odd = growing(Growth::fixed_linear);
  EXPECT_EQ(warning(odd), "");
  odd.multiple = 6;
  EXPECT_NE(warning(odd).find("difficulty_step is 6"), std::string::npos);
}

}  // namespace
}  // namespace capstan::schedule

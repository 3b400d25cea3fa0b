#include "capstan/config/convert.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/json/reader.h"
#include "capstan/json/writer.h"

namespace capstan::config {
namespace {

using ::testing::HasSubstr;

// The converted value as text, or "!" and the problem.
std::string converted(const Key& key, const char* text) {
  const Converted out = convert(key, json::read(text, "value"));
  return out.problem.empty() ? json::write(out.value, {.indent = 0}) : "!" + out.problem;
}

TEST(Convert, FlagsTakeWhatCanOnlyMeanOneThing) {
  const Key key = flag("f", false);
  for (const char* yes :
       {"true", "1", "1.0", "\"true\"", "\"Yes\"", "\"ON\"", "\"t\"", "\"y\"", "\"1\""}) {
    EXPECT_EQ(converted(key, yes), "true") << yes;
  }
  for (const char* no : {"false", "0", "\"False\"", "\"off\"", "\"n\""}) {
    EXPECT_EQ(converted(key, no), "false") << no;
  }
  for (const char* bad : {"2", "\"enabled\"", "[]", "{}", "0.5", "\"\""}) {
    EXPECT_THAT(converted(key, bad), HasSubstr("true or false is expected")) << bad;
  }
}

TEST(Convert, IntegersTakeIntegralNumbersAndDigits) {
  const Key key = integer("i", "0").at_least(0);
  EXPECT_EQ(converted(key, "5e8"), "500000000");
  EXPECT_EQ(converted(key, "1e12"), "1000000000000");
  EXPECT_EQ(converted(key, "2.0"), "2");
  EXPECT_EQ(converted(key, "\"5\""), "5");
  EXPECT_EQ(converted(key, "\"5.0\""), "5");
  EXPECT_EQ(converted(key, "\" 7 \""), "7");
  EXPECT_EQ(converted(key, "\"1_000\""), "1000");
  for (const char* bad :
       {"5.5", "\"5e8\"", "Infinity", "NaN", "1e300", "-1", "\"x\"", "[1]", "9.3e18"}) {
    EXPECT_THAT(converted(key, bad), HasSubstr("an integer of at least 0 is expected")) << bad;
  }
}

TEST(Convert, ANumberThatDoesNotFitIsToldInWords) {
  EXPECT_THAT(converted(integer("i", "0"), "9223372036854775808"),
              HasSubstr("which is too large to hold"));
  EXPECT_THAT(converted(number("n", "0"), "1e999"), HasSubstr("a number too large to hold"));
  EXPECT_THAT(converted(integer("i", "0"), "16.5"), HasSubstr("16.5 is given, but an integer"));
}

TEST(Convert, WhatIsPassedOnIsANumberWhereItsTextIsOne) {
  EXPECT_EQ(converted(passed("*"), "\"1e-3\""), "0.001");
  EXPECT_EQ(converted(passed("*"), "[\"0.9\", 0.5]"), "[0.9, 0.5]");
  EXPECT_EQ(converted(passed("*"), "\"min\""), "\"min\"");
  EXPECT_NE(convert(passed("*"), json::Value("3")).remark, "");
}

TEST(Convert, NumbersStayInTheirRange) {
  const Key share = number("n", "0.5").at_least(0).at_most(1);
  EXPECT_EQ(converted(share, "1"), "1.0");
  EXPECT_EQ(converted(share, "\"1e-3\""), "0.001");
  for (const char* bad : {"1.01", "-0.1", "NaN", "Infinity", "\"half\""}) {
    EXPECT_THAT(converted(share, bad), HasSubstr("a number from 0 to 1 is expected")) << bad;
  }
  EXPECT_THAT(converted(number("n", "1").above(0), "0"), HasSubstr("a number above 0"));
  EXPECT_EQ(converted(number("n", "1").or_infinity(), "Infinity"), "Infinity");
}

TEST(Convert, TrueIsNoNumber) {
  EXPECT_THAT(converted(integer("i", "0"), "true"),
              HasSubstr("true is given, but an integer is expected"));
  EXPECT_THAT(converted(number("n", "0"), "false"), HasSubstr("a number is expected"));
  EXPECT_THAT(converted(number_or_list("n", "0"), "true"), HasSubstr("a number, or a list"));
  EXPECT_THAT(converted(numbers("n", "[]"), "[1, true]"), HasSubstr("a list of numbers"));
}

TEST(Convert, ChoicesWantTheirSpellingUnlessTheySayOtherwise) {
  const Key exact = choice("device", "none", {"none", "cpu", "nvme"});
  EXPECT_EQ(converted(exact, "\"cpu\""), "\"cpu\"");
  EXPECT_EQ(convert(exact, json::Value("CPU")).fix, "write \"cpu\", in that spelling");
  EXPECT_EQ(convert(exact, json::Value("nvmee")).fix, "did you mean \"nvme\"?");
  const Key loose = choice("type", "Adam", {"Adam", "SGD"}).ignoring_case();
  EXPECT_EQ(converted(loose, "\"sgd\""), "\"SGD\"");
}

TEST(Convert, AStringWithoutQuotesIsExplained) {
  json::Value value("cpu, # here");
  value.quoted = false;
  EXPECT_THAT(convert(choice("device", "none", {"none", "cpu"}), value).fix,
              HasSubstr("runs to the end of its line"));
}

TEST(Convert, ListsTakeOneItemWhereThatIsClear) {
  EXPECT_EQ(converted(texts("t", "[]"), "\"one\""), "[\"one\"]");
  EXPECT_EQ(converted(texts("t", "[]"), "[\"a\", \"b\"]"), "[\"a\", \"b\"]");
  EXPECT_EQ(converted(number_or_list("n", "0"), "0.5"), "[0.5]");
  EXPECT_EQ(converted(number_or_list("n", "0"), "[1, 2]"), "[1.0, 2.0]");
  EXPECT_THAT(converted(texts("t", "[]"), "[1]"), HasSubstr("a list of strings"));
  EXPECT_THAT(converted(numbers("betas", "[0, 0]"), "[0.9]"), HasSubstr("a list of two numbers"));
  EXPECT_THAT(converted(numbers("n", "[]"), "5"), HasSubstr("a list of numbers"));
}

}  // namespace
}  // namespace capstan::config

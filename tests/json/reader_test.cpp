#include "capstan/json/reader.h"

#include <cmath>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/json/writer.h"

namespace capstan::json {
namespace {

using ::testing::HasSubstr;

std::string compact(std::string_view text) { return write(read(text, "test"), {.indent = 0}); }

ErrorInfo error_of(std::string_view text) {
  try {
    read(text, "test");
  } catch (const ConfigError& error) {
    return error.info();
  }
  ADD_FAILURE() << "no error for: " << text;
  return {};
}

TEST(Reader, ReadsPlainJson) {
  EXPECT_EQ(compact(R"({"a": [1, -2.5, 1e3], "b": {"c": "x\n\u00e9\ud83d\ude00"}, "d": null})"),
            R"({"a": [1, -2.5, 1000.0], "b": {"c": "x\né😀"}, "d": null})");
  EXPECT_EQ(compact(R"([true, false, []])"), R"([true, false, []])");
  EXPECT_EQ(compact(R"("text")"), R"("text")");
  EXPECT_EQ(compact("17"), "17");
}

TEST(Reader, TakesCommentsAndOptionalCommas) {
  EXPECT_EQ(compact("{ # one\n \"a\": 1 // two\n \"b\": 2 /* three\n four */\n c: 3,\n}"),
            R"({"a": 1, "b": 2, "c": 3})");
  EXPECT_EQ(compact("[1\n2\n3,]"), "[1, 2, 3]");
  EXPECT_EQ(compact(R"({"a": "x" "b": {} "c": []})"), R"({"a": "x", "b": {}, "c": []})");
}

TEST(Reader, TakesARootWithoutBracesAByteOrderMarkAndNothingAtAll) {
  EXPECT_EQ(compact("a: 1\n\"b\": 2"), R"({"a": 1, "b": 2})");
  EXPECT_EQ(compact("\xEF\xBB\xBF{}"), "{}");
  EXPECT_EQ(compact(""), "{}");
  EXPECT_TRUE(read_document(" # nothing\n", "test").blank);
  EXPECT_FALSE(read_document("{}", "test").blank);
  EXPECT_EQ(compact(" # only a comment"), "{}");
}

TEST(Reader, TakesBothKindsOfQuotes) {
  EXPECT_EQ(compact("{'a': 'say \"x\"', \"b\": \"it's\"}"), R"({"a": "say \"x\"", "b": "it's"})");
}

TEST(Reader, AnUnquotedStringRunsToTheEndOfItsLine) {
  const Value value = read("a: x, y # z\nb: /local_nvme\nc: 5 apples", "test");
  EXPECT_EQ(*value.find("a")->text(), "x, y # z");
  EXPECT_FALSE(value.find("a")->quoted);
  EXPECT_EQ(*value.find("b")->text(), "/local_nvme");
  EXPECT_EQ(*value.find("c")->text(), "5 apples");
}

TEST(Reader, MultiLineStringsLoseTheirIndentation) {
  EXPECT_EQ(compact("a:\n  '''\n  one\n    two\n  '''\n"), R"({"a": "one\n  two"})");
  EXPECT_EQ(compact("a: '''one'''"), R"({"a": "one"})");
  EXPECT_EQ(compact("a: ''''''"), R"({"a": ""})");
}

TEST(Reader, NumbersStayIntegersWhereTheyAreWrittenSo) {
  const Value value = read(
      "[5e8, 500000000, 9223372036854775807, 9223372036854775808, 1e999, -0, "
      "Infinity, NaN, True, None]",
      "test");
  const Array& items = *value.array();
  EXPECT_EQ(items[0].kind(), Kind::real);
  EXPECT_EQ(*items[1].integer(), 500000000);
  EXPECT_EQ(*items[2].integer(), INT64_MAX);
  EXPECT_EQ(*items[3].real(), 9223372036854775808.0);
  EXPECT_TRUE(std::isinf(*items[4].real()));
  EXPECT_EQ(*items[5].integer(), 0);
  EXPECT_TRUE(std::isinf(*items[6].real()));
  EXPECT_TRUE(std::isnan(*items[7].real()));
  EXPECT_TRUE(*items[8].boolean());
  EXPECT_TRUE(items[9].is_null());
  for (const char* text : {"05", "+5", ".5", "5.", "1e", "--1", "0x10"}) {
    EXPECT_EQ(read(text, "test").kind(), Kind::text) << text;
  }
}

TEST(Reader, EveryValueAndKeyKnowsItsPlace) {
  const Value value = read("{\n  \"a\": {\"b\":  [1,\n 22]}\n}", "test");
  const Object& root = *value.object();
  EXPECT_EQ(value.place, (Place{1, 1}));
  EXPECT_EQ(root[0].place, (Place{2, 3}));
  EXPECT_EQ(root[0].value.place, (Place{2, 8}));
  const Object& inner = *root[0].value.object();
  EXPECT_EQ(inner[0].place, (Place{2, 9}));
  EXPECT_EQ((*inner[0].value.array())[1].place, (Place{3, 2}));
}

TEST(Reader, ListsEveryDoubledKeyAtEveryDepth) {
  const Document document =
      read_document("{\"a\": 1, \"b\": {\"c\": 1,\n\"c\": 2},\n\"a\": 3}", "f.json");
  ASSERT_EQ(document.problems.size(), 2U);
  EXPECT_THAT(document.problems[0].what, HasSubstr("\"c\" is given twice; the first is on line 1"));
  EXPECT_EQ(document.problems[0].where, "f.json:2:1");
  EXPECT_EQ(document.problems[1].where, "f.json:3:1");
  EXPECT_EQ(*document.root.find("a")->integer(), 1);
  EXPECT_THROW(read("{a: 1\na: 2}", "test"), ConfigError);
}

TEST(Reader, TeachesWhatAPlaceholderIsAndReadsOn) {
  const Document document = read_document(
      "{\"stage\": [0|1|2|3], # text, with a comma\n\"x\": [true|false]\n\"y\": 1}", "t");
  ASSERT_EQ(document.problems.size(), 2U);
  EXPECT_THAT(document.problems[0].what, HasSubstr("[0|1|2|3]"));
  EXPECT_THAT(document.problems[0].fix, HasSubstr("\"stage\": 0"));
  EXPECT_EQ(document.problems[0].where, "t:1:11");
  EXPECT_THAT(document.problems[1].fix, HasSubstr("\"x\": true"));
  EXPECT_EQ(*document.root.find("y")->integer(), 1);
}

struct BadText {
  const char* text;
  const char* what;
  const char* where;
};

class ReaderFails : public ::testing::TestWithParam<BadText> {};

TEST_P(ReaderFails, WithWhatWhereAndFix) {
  const ErrorInfo error = error_of(GetParam().text);
  EXPECT_THAT(error.what, HasSubstr(GetParam().what));
  EXPECT_EQ(error.where, GetParam().where);
  EXPECT_NE(error.fix, "");
}

INSTANTIATE_TEST_SUITE_P(
    BadTexts, ReaderFails,
    ::testing::Values(BadText{"{\"a\": {\"b\": 1", "'{' opened on line 1 (a) is not closed",
                              "test:1:14"},
                      BadText{"{\"a\": \"x\n", "a string is not closed on its line", "test:1:7"},
                      BadText{"{\"a\": [1, 2", "ends inside a list", "test:1:12"},
                      BadText{"{\"a\"", "the text ends after \"a\"", "test:1:2"},
                      BadText{"{\"a\" 1}", "no ':' after \"a\"", "test:1:6"},
                      BadText{"{\"a\": }", "'}' was found where a value should be", "test:1:7"},
                      BadText{"{\"a\": 1,, \"b\": 2}", "expected a key here", "test:1:9"},
                      BadText{"{\"a\": [1}", "does not close anything", "test:1:9"},
                      BadText{"{\"a\": 1]", "does not close anything", "test:1:8"},
                      BadText{"{} {}", "text after the end", "test:1:4"},
                      BadText{"a: 1 }", "does not close anything", "test:1:6"},
                      BadText{"{\"a\": 1 /* x", "never closed", "test:1:9"},
                      BadText{"{\"a\": '''x", "never closed", "test:1:7"},
                      BadText{"{\"a\": \"\\q\"}", "\\q is not a valid escape", "test:1:8"},
                      BadText{"{\"a\": \"\\u12\"}", "four hexadecimal digits", "test:1:10"},
                      BadText{"{\"a\": \"\\ud800\"}", "half of a surrogate pair", "test:1:10"},
                      BadText{"{\"a\": 1 \"b\": 2}", "a key are on the same line", "test:1:7"},
                      BadText{"{\"a\": \"\xFF\"}", "byte 0xff is not UTF-8", "test:1:8"},
                      BadText{"\xFF\xFE{", "UTF-16", "test"}));

TEST(Reader, SaysWhyAnUnquotedStringLeavesItsObjectOpen) {
  EXPECT_THAT(error_of("{a: {device: cpu}, b: 2}").fix,
              HasSubstr("put the string on line 1 in quotes"));
}

TEST(Reader, RefusesDeepNestingInsteadOfOverflowingTheStack) {
  EXPECT_THAT(error_of(std::string(1000000, '[')).what, HasSubstr("nested deeper than 64"));
  EXPECT_NO_THROW(read(std::string(kMaxDepth, '[') + std::string(kMaxDepth, ']'), "test"));
}

// On one line, as other programs write it: hours, if each value looked for the line's end.
TEST(Reader, TakesTimeInProportionToTheText) {
  std::string text = "{\"numbers\": [";
  for (int i = 0; i < 1'000'000; ++i) text += "1234, ";
  text += "[0]], \"lists\": [";
  for (int i = 0; i < 300'000; ++i) text += "[1],";
  text += "[2]]}";
  const Value value = read(text, "test");
  EXPECT_EQ(value.find("numbers")->array()->size(), 1'000'001U);
  EXPECT_EQ(value.find("lists")->array()->size(), 300'001U);
}

TEST(Reader, LimitsAreTheCallers) {
  const std::string deep = std::string(100, '[') + std::string(100, ']');
  EXPECT_THAT(error_of(deep).what, HasSubstr("nested deeper than 64"));
  EXPECT_NO_THROW(read(deep, "test", {.depth = 100}));
  EXPECT_THROW(read("[1, 2]", "test", {.bytes = 5}), ConfigError);
  EXPECT_NO_THROW(read("[1, 2]", "test", {.bytes = 6}));
}

}  // namespace
}  // namespace capstan::json

#include "capstan/data/unicode.h"

#include <gtest/gtest.h>

#include "capstan/data/unicode_table.h"

namespace capstan::data {
namespace {

TEST(FirstCodePoint, ReadsAllLengths) {
  const auto expect = [](std::string_view text, std::uint32_t value, int bytes) {
    EXPECT_EQ(first_code_point(text).value, value);
    EXPECT_EQ(first_code_point(text).bytes, bytes);
  };
  expect("", 0, 0);
  expect("a", 'a', 1);
  expect("é", 0xe9, 2);
  expect("你", 0x4f60, 3);
  expect("😀", 0x1f600, 4);
  expect("\xf4\x8f\xbf\xbf", 0x10ffff, 4);
}

TEST(FirstCodePoint, TakesOneByteOfWhatIsNotUtf8) {
  for (const std::string_view text :
       {"\x80", "\xc0\xaf", "\xc3", "\xe2\x82", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
        "\xf8\x88\x80\x80\x80", "\xff", "\xc3("}) {
    EXPECT_EQ(first_code_point(text).value, 0xfffdU) << testing::PrintToString(text);
    EXPECT_EQ(first_code_point(text).bytes, 1);
  }
}

TEST(PrintableText, ReplacesWhatAScreenCannotShow) {
  EXPECT_EQ(printable_text("a\n\tb é"), "a\n\tb é");
  EXPECT_EQ(printable_text("\033[2J\xff\x7f"), "\ufffd[2J\ufffd\ufffd");
  EXPECT_EQ(printable_text("\u0085\ufffd"), "\ufffd\ufffd");
}

TEST(KindOf, KnowsTheEdgesOfTheTables) {
  EXPECT_EQ(kind_of('a'), CharKind::letter);
  EXPECT_EQ(kind_of('7'), CharKind::number);
  EXPECT_EQ(kind_of('\t'), CharKind::space);
  EXPECT_EQ(kind_of('_'), CharKind::other);
  EXPECT_EQ(kind_of(0x10ffff), CharKind::other);
  EXPECT_EQ(kind_of(0x3000), CharKind::space);
  for (const CodeRange& range : letter_ranges()) {
    EXPECT_EQ(kind_of(range.first), CharKind::letter);
    EXPECT_EQ(kind_of(range.last), CharKind::letter);
    EXPECT_NE(kind_of(range.last + 1), CharKind::letter);
  }
  for (const CodeRange& range : number_ranges()) {
    EXPECT_EQ(kind_of(range.first), CharKind::number);
    EXPECT_NE(kind_of(range.first - 1), CharKind::number);
  }
}

}  // namespace
}  // namespace capstan::data

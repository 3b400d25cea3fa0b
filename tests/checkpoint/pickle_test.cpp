#include "capstan/checkpoint/deepspeed/pickle_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/checkpoint/checkpoint_fixture.h"

namespace capstan::checkpoint {
namespace {

using std::string_literals::operator""s;
using testing::HasSubstr;

std::string refusal_of(const std::string& pickle) {
  return error_text([&] { read_pickle(pickle, "test.pt"); });
}

TEST(Pickle, PlainDataIsRead) {
  // {"a": [1, 2.5, None, True], "b": (-3, "x")} in protocol 2
  const std::string pickle =
      "\x80\x02}(X\x01\x00\x00\x00"
      "a](K\x01G\x40\x04\x00\x00\x00\x00\x00\x00N\x88"
      "e"
      "X\x01\x00\x00\x00"
      "bJ\xfd\xff\xff\xffX\x01\x00\x00\x00x\x86u."s;
  const PyRef value = read_pickle(pickle, "test.pt");
  ASSERT_EQ(value->kind, PyKind::dict);
  const PyValue* const list = value->find("a");
  ASSERT_EQ(list->items.size(), 4U);
  EXPECT_EQ(list->items[1]->real, 2.5);
  EXPECT_TRUE(list->items[3]->boolean);
  EXPECT_EQ(value->find("b")->items[0]->integer, -3);
}

TEST(Pickle, CodeIsRefusedByItsName) {
  EXPECT_THAT(refusal_of("\x80\x02"
                         "cos\nsystem\nX\x04\x00\x00\x00true\x85R."s),
              HasSubstr("it contains the class os.system, which is not allowed"));
  EXPECT_THAT(refusal_of("\x80\x04\x8c\x08"
                         "builtins\x8c\x04"
                         "eval\x93."s),
              HasSubstr("builtins.eval"));
  EXPECT_THAT(refusal_of("\x80\x02"
                         "cargparse\nNamespace\n)\x81."s),
              HasSubstr("argparse.Namespace"));
}

TEST(Pickle, DamagedOnesAreRefused) {
  EXPECT_THAT(refusal_of(""), HasSubstr("ends too early"));
  EXPECT_THAT(refusal_of("\x80\x02"s), HasSubstr("ends too early"));
  EXPECT_THAT(refusal_of("\x80\x02."s), HasSubstr("stack is empty"));
  EXPECT_THAT(refusal_of("\x80\x02h\x07."s), HasSubstr("never stored"));
  EXPECT_THAT(refusal_of("\x80\x02K\x01K\x02"
                         "a."s),
              HasSubstr("not a list"));
  EXPECT_THAT(refusal_of("\x80\x02t."s), HasSubstr("mark is missing"));
  EXPECT_THAT(refusal_of("\x80\x02\xff."s), HasSubstr("operation 0xff"));
  EXPECT_THAT(refusal_of("\x80\x02X\xff\xff\xff\xff"s), HasSubstr("ends too early"));
}

// Both ways to make them: appended from the inside out, and put into tuples.
TEST(Pickle, DeepNestingIsRefusedWhateverItsDepth) {
  for (const std::size_t depth : {200U, 100'000U, 300'000U, 3'000'000U}) {
    EXPECT_THAT(refusal_of(std::string(depth, ']') + std::string(depth - 1, 'a') + "."),
                HasSubstr("nested deeper"));
    EXPECT_THAT(refusal_of("N" + std::string(depth, '\x85') + "."), HasSubstr("nested deeper"));
  }
  EXPECT_EQ(refusal_of(std::string(90, ']') + std::string(89, 'a') + "."), "");
}

TEST(Pickle, WhatHoldsItselfIsRefused) {
  EXPECT_THAT(refusal_of("]q\0h\0a."s), HasSubstr("contains itself"));
  EXPECT_THAT(refusal_of("}q\0K\1h\0s."s), HasSubstr("contains itself"));
  EXPECT_THAT(refusal_of("]q\0]q\1h\0ah\0h\1a."s),
              HasSubstr("contains itself"));  // through another
  // An object whose attributes hold it.
  EXPECT_THAT(refusal_of("ctorch\ndevice\n)Rq\0}X\1\0\0\0xh\0sb."s), HasSubstr("contains itself"));
  // Grown at its innermost after it was counted.
  std::string grown = "]q\0]a";  // a list with a list in it; then always one more inside
  for (int i = 0; i < 300; ++i) grown += "h\0]q\0a0"s;
  EXPECT_THAT(refusal_of(grown + "."), testing::Not(""));
}

TEST(Pickle, SharedValuesStayWhatTheyAreAndDoNotMultiply) {
  // x = [7]; [x, x]
  const PyRef value = read_pickle("](]q\1K\7ah\1e."s, "test.pt");
  ASSERT_EQ(value->items.size(), 2U);
  EXPECT_EQ(value->items[1]->items.front()->integer, 7);
  // Each list holds the one before it twice: 2^60 values in 400 bytes.
  std::string doubled = "]";
  for (int i = 0; i < 60; ++i) doubled += "q\0](h\0h\0e"s;
  EXPECT_THAT(refusal_of(doubled + "."), HasSubstr("repeats itself too often"));
  // A long text in many places.
  std::string texts = "(X\xa0\x86\x01\0"s + std::string(100'000, 'x') + "q\0"s;
  for (int i = 0; i < 100'000; ++i) texts += "h\0"s;
  EXPECT_THAT(refusal_of(texts + "t."), HasSubstr("repeats itself too often"));
}

TEST(Pickle, TensorsThatCannotBeAreRefused) {
  const auto tensor = [](const std::string& offset, const std::string& shape) {
    return "ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0"s +
           "0X\3\0\0\0cpuK\1tQ"s + offset + shape + "K\1\x85" + "tR.";
  };
  const std::string huge = "\x8a\x08\0\0\0\0\0\0\0\x40"s;  // 2^62
  EXPECT_EQ(refusal_of(tensor("K\0"s, "K\3\x85"s)), "");
  EXPECT_THAT(refusal_of(tensor("K\0"s, huge + "\x85")), HasSubstr("a tensor is ill-formed"));
  EXPECT_THAT(refusal_of(tensor("J\xff\xff\xff\xff", "K\3\x85"s)), HasSubstr("ill-formed"));
  EXPECT_THAT(refusal_of(tensor("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"s, "K\3\x85"s)),
              HasSubstr("ill-formed"));
}

TEST(Pickle, TextsAreUtf8) { EXPECT_THAT(refusal_of("X\1\0\0\0\xff."s), HasSubstr("not UTF-8")); }

}  // namespace
}  // namespace capstan::checkpoint

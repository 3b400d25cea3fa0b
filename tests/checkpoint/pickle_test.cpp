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
              HasSubstr("it holds the class os.system, which is not read"));
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
  EXPECT_THAT(refusal_of("\x80\x02h\x07."s), HasSubstr("never remembered"));
  EXPECT_THAT(refusal_of("\x80\x02K\x01K\x02"
                         "a."s),
              HasSubstr("no list"));
  EXPECT_THAT(refusal_of("\x80\x02t."s), HasSubstr("mark is missing"));
  EXPECT_THAT(refusal_of("\x80\x02\xff."s), HasSubstr("operation 0xff"));
  EXPECT_THAT(refusal_of("\x80\x02X\xff\xff\xff\xff"s), HasSubstr("ends too early"));
}

}  // namespace
}  // namespace capstan::checkpoint

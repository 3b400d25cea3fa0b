#include "capstan/json/writer.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "capstan/json/reader.h"

namespace capstan::json {
namespace {

TEST(Writer, IndentsAndKeepsTheOrderOfMembers) {
  Value value;
  value.add("b", Value(1))
      .add("a", Value(Array{Value(true), Value("x")}))
      .add("c", Value(Object{}));
  EXPECT_EQ(write(value), "{\n  \"b\": 1,\n  \"a\": [\n    true,\n    \"x\"\n  ],\n  \"c\": {}\n}");
  EXPECT_EQ(write(value, {.indent = 0}), R"({"b": 1, "a": [true, "x"], "c": {}})");
}

TEST(Writer, WhatItWritesReadsBackEqual) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Value value;
  value.add("text", Value(std::string("\"\\\n\t\x01\xC3\xA9", 7)));
  value.add("reals", Value(Array{Value(0.1), Value(1.0), Value(1e300), Value(5e-324), Value(-0.0),
                                 Value(kInfinity), Value(-kInfinity)}));
  value.add("integers", Value(Array{Value(std::numeric_limits<std::int64_t>::min()), Value(0)}));
  value.add("empty", Value(Array{}));
  EXPECT_EQ(read(write(value), "test"), value);
  EXPECT_EQ(read(write(value, {.indent = 0}), "test"), value);
  EXPECT_TRUE(std::isnan(*read(write(Value(std::nan(""))), "test").real()));
}

}  // namespace
}  // namespace capstan::json

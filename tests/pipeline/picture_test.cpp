#include "capstan/pipeline/picture.h"

#include <gtest/gtest.h>

#include "capstan/pipeline/schedules.h"

namespace capstan::pipeline {
namespace {

std::string drawn(Kind kind, const Shape& shape, const Costs& costs = {}) {
  return draw(simulate(make_schedule(kind, shape), {costs}));
}

TEST(Picture, HasALinePerStageAndTimeToTheRight) {
  EXPECT_EQ(drawn(Kind::one_f_one_b, {2, 2}),
            "stage 0  F0 F1 ..... B0--- .. B1---\n"
            "stage 1  .. F0 B0--- F1 B1--- .....\n");
  EXPECT_EQ(drawn(Kind::zb_h1, {2, 2}),
            "stage 0  F0 F1 .. B0 W0 B1 W1\n"
            "stage 1  .. F0 B0 F1 B1 W0 W1\n");
  EXPECT_EQ(drawn(Kind::inference, {1, 11}),
            "stage 0  F0- F1- F2- F3- F4- F5- F6- F7- F8- F9- F10\n");
}

TEST(Picture, TellsChunksApartAndKeepsLinesEquallyLong) {
  const std::string picture = drawn(Kind::interleaved, {2, 2, 2});
  EXPECT_EQ(picture,
            "stage 0  F0a F1a F0b F1b ....... B0b---- ... B1b---- B0a---- B1a----\n"
            "stage 1  ... F0a F1a F0b B0b---- F1b B1b---- B0a---- B1a---- .......\n");
  const std::string many = drawn(Kind::gpipe, {11, 3}, {3, 5, 2, 1});
  const std::size_t width = many.find('\n');
  for (std::size_t at = 0; at < many.size(); at += width + 1) {
    ASSERT_EQ(many.find('\n', at), at + width);
  }
  EXPECT_EQ(many.substr(0, 10), "stage  0  ");
}

TEST(Picture, WorkThatTakesNoTimeIsNotSeen) {
  EXPECT_EQ(drawn(Kind::zb_h1, {1, 2}, {.backward_weights = 0}), "stage 0  F0 B0 F1 B1\n");
  EXPECT_EQ(draw(simulate(make_schedule(Kind::inference, {1, 1}), {{.forward = 0}})),
            "stage 0  \n");
}

}  // namespace
}  // namespace capstan::pipeline

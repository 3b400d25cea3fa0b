#include "capstan/tensor_parallel/own_random.h"

#include <optional>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace capstan::tensor_parallel {
namespace {

struct Drawn {
  at::Tensor inside;
  at::Tensor after;
};

Drawn draw_as(int rank, std::int64_t count) {
  at::manual_seed(5);
  std::optional<OwnRandom> own;
  own.emplace(at::kCPU, rank);
  Drawn drawn{at::rand({count}), {}};
  own.reset();
  drawn.after = at::rand({8});
  return drawn;
}

TEST(OwnRandom, DiffersBetweenRanksAndComesAgainFromTheSameSeed) {
  EXPECT_FALSE(at::equal(draw_as(0, 8).inside, draw_as(1, 8).inside));
  EXPECT_TRUE(at::equal(draw_as(1, 8).inside, draw_as(1, 8).inside));
}

TEST(OwnRandom, LeavesRanksThatDrewUnequallyInAgreement) {
  EXPECT_TRUE(at::equal(draw_as(0, 8).after, draw_as(1, 1000).after));
}

TEST(OwnRandom, GivesOtherNumbersEachTime) {
  at::manual_seed(5);
  std::optional<OwnRandom> own;
  own.emplace(at::kCPU, 0);
  const at::Tensor first = at::rand({8});
  own.reset();
  own.emplace(at::kCPU, 0);
  EXPECT_FALSE(at::equal(first, at::rand({8})));
}

}  // namespace
}  // namespace capstan::tensor_parallel

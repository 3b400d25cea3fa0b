#include "capstan/comm/numbers.h"

#include <gmock/gmock.h>

#include "tests/support/run_ranks.h"

namespace capstan::comm {
namespace {

TEST(Numbers, EveryRankGetsEveryRanksNumber) {
  for (const int world : {1, 2, 3}) {
    run_ranks(world, [&](Group& group) {
      std::vector<std::int64_t> wanted;
      for (int rank = 0; rank < world; ++rank) wanted.push_back((std::int64_t{1} << 40) + rank);
      EXPECT_EQ(
          from_all_ranks(group, c10::kCPU, wanted[static_cast<std::size_t>(group.rank())], "x"),
          wanted);
    });
  }
}

}  // namespace
}  // namespace capstan::comm

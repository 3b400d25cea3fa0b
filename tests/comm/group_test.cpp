#include "capstan/comm/group.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "tests/support/run_ranks.h"

namespace capstan::comm {
namespace {

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble,
                                      at::kInt,   at::kLong, at::kByte};

at::Tensor numbers(std::int64_t n, int seed, at::ScalarType dtype) {
  at::Tensor values = at::arange(n, at::kLong).mul(7 + seed).add(seed * 3).remainder(19);
  if (at::isFloatingType(dtype)) {
    return values.to(at::kDouble).div(7).to(dtype);
  }
  return values.to(dtype);
}

// The definition: add in rank order in fp32 (or the wide type), round once.
at::Tensor sum_over_ranks(int ranks, std::int64_t n, at::ScalarType dtype, at::ScalarType out) {
  const bool narrow = dtype == at::kHalf || dtype == at::kBFloat16;
  at::Tensor sum = numbers(n, 0, dtype).to(narrow ? at::kFloat : dtype);
  for (int rank = 1; rank < ranks; ++rank) {
    sum = sum.add(numbers(n, rank, dtype).to(sum.scalar_type()));
  }
  return sum.to(out);
}

class GroupOfN : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, GroupOfN, testing::Values(1, 2, 3, 4));

TEST_P(GroupOfN, AllGatherPutsEveryRanksPartInRankOrder) {
  run_ranks(GetParam(), [](Group& group) {
    for (const at::ScalarType dtype : kDtypes) {
      const at::Tensor whole = at::zeros({5 * group.size()}, dtype);
      group.all_gather(whole, numbers(5, group.rank(), dtype)).wait();
      for (int rank = 0; rank < group.size(); ++rank) {
        EXPECT_TRUE(whole.narrow(0, rank * 5, 5).equal(numbers(5, rank, dtype)));
      }
    }
  });
}

TEST_P(GroupOfN, AllGatherWorksInPlace) {
  run_ranks(GetParam(), [](Group& group) {
    const at::Tensor whole = at::zeros({4 * group.size()}, at::kFloat);
    at::Tensor mine = whole.narrow(0, group.rank() * 4, 4);
    mine.fill_(group.rank() + 1.0);
    group.all_gather(whole, mine).wait();
    for (int rank = 0; rank < group.size(); ++rank) {
      EXPECT_TRUE(whole.narrow(0, rank * 4, 4).eq(rank + 1.0).all().item<bool>());
    }
  });
}

TEST_P(GroupOfN, ReduceScatterAddsInRankOrderForEveryDtype) {
  run_ranks(GetParam(), [](Group& group) {
    const std::int64_t part = 2051;  // crosses the block of the local sum
    for (const at::ScalarType dtype : kDtypes) {
      const at::Tensor mine = at::zeros({part}, dtype);
      group.reduce_scatter(mine, numbers(part * group.size(), group.rank(), dtype)).wait();
      const at::Tensor sum = sum_over_ranks(group.size(), part * group.size(), dtype, dtype);
      EXPECT_TRUE(mine.equal(sum.narrow(0, group.rank() * part, part))) << dtype_name(dtype);
    }
  });
}

TEST_P(GroupOfN, ReduceScatterOf16BitValuesKeepsTheFp32Sum) {
  run_ranks(GetParam(), [](Group& group) {
    const std::int64_t part = 17;
    for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
      const at::Tensor mine = at::full({part}, 100.0, at::kFloat);
      group
          .reduce_scatter(mine, numbers(part * group.size(), group.rank(), dtype),
                          {.accumulate = true, .label = "unit 3"})
          .wait();
      const at::Tensor sum = sum_over_ranks(group.size(), part * group.size(), dtype, at::kFloat);
      EXPECT_TRUE(mine.equal(sum.narrow(0, group.rank() * part, part).add(100.0)));
    }
  });
}

TEST_P(GroupOfN, AllReduceGivesTheSameBitsForSmallAndLargeAndPaddedTensors) {
  run_ranks(GetParam(), [](Group& group) {
    for (const at::ScalarType dtype : kDtypes) {
      for (const std::int64_t n : {0, 1, 5, 40'000, 40'001}) {
        const at::Tensor tensor = numbers(n, group.rank(), dtype);
        group.all_reduce(tensor).wait();
        EXPECT_TRUE(tensor.equal(sum_over_ranks(group.size(), n, dtype, dtype)))
            << n << " " << dtype_name(dtype);
      }
    }
  });
}

TEST_P(GroupOfN, BroadcastGivesEveryRankTheRootsValues) {
  run_ranks(GetParam(), [](Group& group) {
    for (int root = 0; root < group.size(); ++root) {
      const at::Tensor tensor = numbers(9, group.rank(), at::kBFloat16);
      group.broadcast(tensor, root).wait();
      EXPECT_TRUE(tensor.equal(numbers(9, root, at::kBFloat16)));
    }
  });
}

TEST_P(GroupOfN, AllToAllTransposesParts) {
  run_ranks(GetParam(), [](Group& group) {
    const int n = group.size();
    const at::Tensor sent = at::arange(n * 2, at::kInt).add(100 * group.rank());
    const at::Tensor received = at::zeros_like(sent);
    group.all_to_all(received, sent).wait();
    for (int rank = 0; rank < n; ++rank) {
      EXPECT_EQ(received[rank * 2].item<int>(), 100 * rank + group.rank() * 2);
    }
  });
}

TEST_P(GroupOfN, SendAndRecvPassAMessageRound) {
  run_ranks(GetParam(), [](Group& group) {
    const int n = group.size();
    if (n == 1) return;
    const at::Tensor out = at::full({3}, group.rank(), at::kLong);
    const at::Tensor in = at::zeros({3}, at::kLong);
    PendingOp send = group.send(out, (group.rank() + 1) % n);
    PendingOp recv = group.recv(in, (group.rank() + n - 1) % n);
    recv.wait();
    send.wait();
    EXPECT_EQ(in[2].item<int>(), (group.rank() + n - 1) % n);
  });
}

TEST(Group, WaitsMayComeInAnyOrder) {
  run_ranks(3, [](Group& group) {
    at::Tensor a = at::full({50'000}, 1.0f);
    at::Tensor b = at::full({50'000}, 2.0f);
    at::Tensor whole = at::zeros({30});
    PendingOp first = group.all_reduce(a);
    PendingOp second = group.all_gather(whole, at::full({10}, group.rank() * 1.0f));
    PendingOp third = group.all_reduce(b);
    if (group.rank() == 1) {
      third.wait();
      first.wait();
      second.wait();
    } else {
      first.wait();
      second.wait();
      third.wait();
    }
    EXPECT_EQ(a[49'999].item<float>(), 3.0f);
    EXPECT_EQ(b[0].item<float>(), 6.0f);
    EXPECT_EQ(whole[29].item<float>(), 2.0f);
  });
}

}  // namespace
}  // namespace capstan::comm

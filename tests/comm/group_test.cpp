#include "capstan/comm/group.h"

#include <thread>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "capstan/base/error.h"
#include "tests/support/comm_cases.h"
#include "tests/support/run_ranks.h"

namespace capstan::comm {
namespace {

using testing::HasSubstr;

class GroupOfN : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, GroupOfN, testing::Values(1, 2, 3, 4));

TEST_P(GroupOfN, GetsEveryCollectiveRightForEveryDtype) {
  for (const std::int64_t n : {1, 5, 2051, 40'000}) {  // 2051 crosses the block of the local sum
    run_ranks(GetParam(), [&](Group& group) { check_collectives(group, n); });
  }
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

TEST_P(GroupOfN, AllReduceGivesTheSameBitsForSmallAndLargeAndPaddedTensors) {
  run_ranks(GetParam(), [](Group& group) {
    for (const at::ScalarType dtype : kCommDtypes) {
      for (const std::int64_t n : {0, 1, 5, 40'000, 40'001}) {
        const at::Tensor tensor = numbers_of_rank(n, group.rank(), dtype);
        group.all_reduce(tensor).wait();
        EXPECT_TRUE(tensor.equal(sum_over_ranks(group.size(), n, dtype, dtype)))
            << n << " " << dtype_name(dtype);
      }
    }
  });
}

TEST_P(GroupOfN, TakesEmptyTensors) {
  run_ranks(GetParam(), [](Group& group) {
    const at::Tensor none = at::empty({0});
    group.all_gather(none, none).wait();
    group.reduce_scatter(none, none).wait();
    group.all_to_all(none, none).wait();
    group.broadcast(none, 0).wait();
  });
}

TEST_P(GroupOfN, RecordsEveryOperationAndTheWaitForIt) {
  run_ranks(GetParam(), [](Group& group) {
    const at::Tensor mine = at::zeros({100}, at::kBFloat16);
    const at::Tensor whole = at::zeros({100 * group.size()}, at::kBFloat16);
    group.all_gather(whole, mine, "before").wait();
    profile::Reader reader(group.recorder(), profile::Kinds::all());
    PendingOp gather = group.all_gather(whole, mine, "unit 3");
    group.reduce_scatter(at::zeros({100}), whole, {.label = "sum"}).wait();
    group.broadcast(mine, 0).wait();
    group.barrier("end").wait();
    gather.wait();
    std::vector<std::string> seen;
    for (const profile::Record& record : reader.take()) {
      if (record.kind == profile::Kind::compute) continue;  // a local sum
      seen.push_back(fmt::format("{} {} {} {}", to_string(record.kind), record.name, record.unit,
                                 record.bytes));
      if (record.unit == "unit 3" && record.kind == profile::Kind::gather) {
        EXPECT_EQ(record.detail, fmt::format("all_gather of {} bf16", whole.numel()));
      }
    }
    const std::int64_t bytes = 200 * group.size();
    EXPECT_THAT(seen, testing::ElementsAre(fmt::format("reduce reduce_scatter sum {}", bytes),
                                           fmt::format("wait reduce_scatter sum {}", bytes),
                                           "gather broadcast  200", "wait broadcast  200",
                                           "exchange barrier end 0", "wait barrier end 0",
                                           fmt::format("gather all_gather unit 3 {}", bytes),
                                           fmt::format("wait all_gather unit 3 {}", bytes)));
  });
}

TEST_P(GroupOfN, CountsWholeBuffersWhateverTheSize) {
  run_ranks(GetParam(), [](Group& group) {
    const std::int64_t part = 100;
    const at::Tensor whole = at::zeros({part * group.size()}, at::kBFloat16);
    for (int i = 0; i < 3; ++i) {
      group.reduce_scatter(at::zeros({part}), whole).wait();
    }
    const OpCounter counter = group.counters()[OpKind::reduce_scatter];
    EXPECT_EQ(counter.calls, 3);
    EXPECT_EQ(counter.elems, 3 * part * group.size());
    EXPECT_EQ(counter.bytes, 2 * counter.elems);
    EXPECT_EQ(group.counters()[OpKind::all_gather], OpCounter{});
    group.reset_counters();
    EXPECT_EQ(group.counters()[OpKind::reduce_scatter], OpCounter{});
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

TEST(Group, MayBeWaitedForOnAnotherThread) {
  run_ranks(2, [](Group& group) {
    at::Tensor a = at::full({50'000}, 1.0f);
    at::Tensor b = at::full({50'000}, 2.0f);
    PendingOp first = group.all_reduce(a);
    std::jthread waiter([op = std::move(first)]() mutable { op.wait(); });
    group.all_reduce(b).wait();
    waiter.join();
    EXPECT_EQ(a[0].item<float>(), 2.0f);
    EXPECT_EQ(b[0].item<float>(), 4.0f);
  });
}

TEST(Group, ReusesReceiveBuffers) {
  run_ranks(2, [](Group& group) {
    const at::Tensor whole = at::ones({1 << 20});
    const at::Tensor mine = at::empty({1 << 19});
    group.reduce_scatter(mine, whole).wait();
    const std::int64_t before = group.buffers_made();
    for (int i = 0; i < 5; ++i) group.reduce_scatter(mine, whole).wait();
    EXPECT_EQ(group.buffers_made(), before);
  });
}

TEST(Group, RefusesTensorsThatDoNotFitBeforeAnythingIsSent) {
  run_ranks(2, [](Group& group) {
    const at::Tensor four = at::ones({4});
    EXPECT_THROW(PendingOp op = group.all_gather(four, at::ones({4})), ConfigError);
    EXPECT_THROW(PendingOp op = group.all_gather(four, at::ones({2}, at::kInt)), ConfigError);
    EXPECT_THROW(PendingOp op = group.all_gather(at::ones({2, 2}), at::ones({2})), ConfigError);
    EXPECT_THROW(PendingOp op = group.all_gather(at::ones({8}).slice(0, 0, 8, 2), at::ones({2})),
                 ConfigError);
    EXPECT_THROW(PendingOp op = group.reduce_scatter(at::ones({2}, at::kInt), four), ConfigError);
    EXPECT_THROW(PendingOp op = group.reduce_scatter(at::ones({3}), four), ConfigError);
    EXPECT_THROW(PendingOp op = group.all_to_all(at::ones({3}), at::ones({3})), ConfigError);
    EXPECT_THROW(PendingOp op = group.broadcast(four, 2), ConfigError);
    EXPECT_THROW(PendingOp op = group.send(four, group.rank()), ConfigError);
    EXPECT_THROW(PendingOp op = group.all_reduce(at::ones({2}, at::kBool)), ConfigError);
    EXPECT_THROW(PendingOp op = group.all_reduce(at::Tensor()), ConfigError);
    group.all_reduce(four).wait();  // still usable
    EXPECT_EQ(four[0].item<float>(), 2.0f);
  });
}

TEST(Group, ADroppedOperationIsFinishedByClose) {
  run_ranks(2, [](Group& group) {
    at::Tensor sum = at::ones({50'000});
    {
      PendingOp dropped = group.all_reduce(sum);
    }
    EXPECT_EQ(group.close(), 1);
    EXPECT_EQ(sum[0].item<float>(), 2.0f);
    EXPECT_THROW(PendingOp op = group.barrier(), CommError);
  });
}

TEST(Group, AHandleMayOutliveItsGroup) {
  const auto hub = make_loopback_hub(1);
  PendingOp op;
  {
    Group group(make_loopback(hub, 0));
    op = group.all_reduce(at::ones({3}));
  }
  op.wait();
  EXPECT_TRUE(op.done());
}

}  // namespace
}  // namespace capstan::comm

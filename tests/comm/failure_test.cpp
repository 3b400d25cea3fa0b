// What a group does when ranks disagree, stay away or give up: over loopback, where every case can
// be staged in one process.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/comm/flight_recorder.h"
#include "capstan/comm/group.h"
#include "tests/support/run_ranks.h"

namespace capstan::comm {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Not;

std::string what_fails(int ranks, const std::function<void(Group&)>& fn,
                       RunRanksOptions options = {}) {
  try {
    run_ranks(ranks, fn, std::move(options));
  } catch (const CommError& error) {
    return error.what();
  }
  return "nothing";
}

TEST(Mismatch, OfOperationsNamesRanksAndOperations) {
  const std::string text = what_fails(3, [](Group& group) {
    const at::Tensor a = at::ones({6});
    if (group.rank() == 1) {
      group.all_to_all(at::empty({6}), a, "unit 7").wait();
    } else {
      group.reduce_scatter(at::empty({2}), a, {.label = "unit 7"}).wait();
    }
  });
  EXPECT_THAT(text, HasSubstr("collective #1 does not match"));
  EXPECT_THAT(text, HasSubstr("rank 1 issued all_to_all of 6 fp32 (unit 7)"));
  EXPECT_THAT(text, HasSubstr("issued reduce_scatter of 6 fp32 (unit 7)"));
}

TEST(Mismatch, OfSizesNamesBoth) {
  const std::string text = what_fails(2, [](Group& group) {
    group.barrier().wait();
    group.all_reduce(at::ones({group.rank() == 0 ? 10 : 12})).wait();
  });
  EXPECT_THAT(text, HasSubstr("collective #2 does not match"));
  EXPECT_THAT(text, HasSubstr("rank 0 issued all_reduce of 10 fp32"));
  EXPECT_THAT(text, HasSubstr("rank 1 issued all_reduce of 12 fp32"));
}

TEST(Mismatch, OfDtypesIsFoundAlsoWhereBytesAreEqual) {
  const std::string text = what_fails(2, [](Group& group) {
    group.broadcast(at::ones({4}, group.rank() == 0 ? at::kHalf : at::kBFloat16), 0).wait();
  });
  EXPECT_THAT(text, HasSubstr("rank 0 issued broadcast of 4 fp16 from rank 0"));
  EXPECT_THAT(text, HasSubstr("rank 1 issued broadcast of 4 bf16 from rank 0"));
}

TEST(Mismatch, OfUnitsOfOneSizeIsFound) {
  const std::string text = what_fails(3, [](Group& group) {
    group.all_gather(at::empty({6}), at::ones({2}), group.rank() == 2 ? "c" : "b").wait();
  });
  EXPECT_THAT(text, HasSubstr("gather different units (b, c): collective #1 does not match"));
}

TEST(Mismatch, OfRootsIsFound) {
  const std::string text =
      what_fails(2, [](Group& group) { group.broadcast(at::ones({4}), group.rank()).wait(); });
  EXPECT_THAT(text, HasSubstr("does not match"));
}

TEST(Mismatch, OfSendAndRecvNamesBoth) {
  const std::string text = what_fails(2, [](Group& group) {
    if (group.rank() == 0) {
      group.send(at::ones({4}), 1).wait();
    } else {
      group.recv(at::ones({5}), 0).wait();
    }
  });
  EXPECT_THAT(text, HasSubstr("send and recv do not match"));
  EXPECT_THAT(text, HasSubstr("send of 4 fp32 to rank 1"));
  EXPECT_THAT(text, HasSubstr("recv of 5 fp32 from rank 0"));
}

TEST(TimeOut, NamesTheRankThatStayedAwayAndThisRanksLastOperations) {
  const std::string text = what_fails(3,
                                      [](Group& group) {
                                        group.barrier("start").wait();
                                        if (group.rank() != 2)
                                          group.all_reduce(at::ones({5}), "loss").wait();
                                      },
                                      {.timeout = 1500ms});
  EXPECT_THAT(text, HasSubstr("all_reduce of 5 fp32 (loss) did not finish within 1.5 s"));
  EXPECT_THAT(text, HasSubstr("not issued by rank 2 (its last operation: barrier (start))"));
  EXPECT_THAT(text, HasSubstr("#1 barrier (start), issued"));
  EXPECT_THAT(text, HasSubstr("#2 all_reduce of 5 fp32 (loss), issued"));
  EXPECT_THAT(text, HasSubstr("not finished"));
}

TEST(TimeOut, LeavesTheGroupUnusableOnEveryRank) {
  std::atomic<bool> timed_out = false;
  run_ranks(2,
            [&](Group& group) {
              if (group.rank() == 0) {
                EXPECT_THROW(group.barrier().wait(), CommError);
                timed_out = true;
              }
              while (!timed_out) std::this_thread::sleep_for(10ms);
              try {
                group.barrier().wait();
                ADD_FAILURE() << "no error";
              } catch (const CommError& error) {
                EXPECT_THAT(error.what(), HasSubstr("rank 0: barrier did not finish within 0.2 s"));
              }
              EXPECT_TRUE(group.failed());
              EXPECT_THROW(PendingOp op = group.all_reduce(at::ones({1})), CommError);
            },
            {.timeout = 200ms});
}

TEST(Abort, EndsWhatOthersWaitForAndGivesTheReason) {
  run_ranks(3, [](Group& group) {
    if (group.rank() == 2) {
      group.abort("the data file is gone");
      return;
    }
    try {
      group.all_gather(at::zeros({6}), at::ones({2})).wait();
      ADD_FAILURE() << "no error";
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 2 aborted the group: the data file is gone"));
    }
  });
}

TEST(RunRanks, RethrowsTheFirstErrorAndEndsTheOthers) {
  const auto run = [] {
    run_ranks(3, [](Group& group) {
      if (group.rank() == 1) throw std::out_of_range("rank 1 has a bug");
      group.barrier().wait();
    });
  };
  EXPECT_THROW(run(), std::out_of_range);
}

// Overlap is relative: five operations of 40 ms issued together and five one after another; the
// caller computes (sleeps) 40 ms beside each. A busy machine lengthens both: the best of three.
TEST(Delay, OperationsRunBesideTheCallersWork) {
  const auto delay = [](const OpFacts& facts) -> std::chrono::nanoseconds {
    return facts.kind == OpKind::all_gather ? 40ms : 0ms;
  };
  const auto elapsed = [&](bool overlapped) {
    const auto begin = std::chrono::steady_clock::now();
    run_ranks(2,
              [&](Group& group) {
                for (int i = 0; i < 5; ++i) {
                  PendingOp op = group.all_gather(at::zeros({4}), at::ones({2}));
                  if (!overlapped) op.wait();
                  std::this_thread::sleep_for(40ms);
                  op.wait();
                }
              },
              {.loopback = {.delay = delay}});
    return std::chrono::steady_clock::now() - begin;
  };
  double best = 1;
  for (int i = 0; i < 3 && best >= 0.75; ++i) {
    best = std::min(best, std::chrono::duration<double>(elapsed(true)) / elapsed(false));
  }
  EXPECT_LT(best, 0.75);
}

TEST(Delay, IssuingDoesNotBlockAndDoneTurnsTrueByItself) {
  run_ranks(2,
            [](Group& group) {
              PendingOp op = group.barrier();
              EXPECT_FALSE(op.done());
              while (!op.done()) std::this_thread::sleep_for(1ms);
              op.wait();
            },
            {.loopback = {.delay = [](const OpFacts&) { return 100ms; }}});
}

TEST(FlightRecorder, KeepsTheLastOperationsOnly) {
  FlightRecorder recorder;
  const auto now = FlightRecorder::Clock::now();
  for (int i = 1; i <= 40; ++i) {
    const std::int64_t number =
        recorder.issued({.kind = OpKind::broadcast, .elems = i, .peer = 0}, now);
    EXPECT_EQ(number, i);
    if (i != 39) recorder.finished(number, now + 2ms);
  }
  recorder.finished(23, now);  // overwritten by the 39th, which must not be touched
  const std::string text = recorder.text(now + 1s);
  EXPECT_THAT(text, Not(HasSubstr("#24 ")));
  EXPECT_THAT(text, HasSubstr("#25 broadcast of 25 uint8 from rank 0, issued 1.000 s ago, took"));
  EXPECT_THAT(text, HasSubstr("#39 broadcast of 39 uint8 from rank 0, issued 1.000 s ago, not"));
  EXPECT_THAT(text, HasSubstr("#40 "));
}

TEST(OpLabel, IsCutToWhatFits) {
  EXPECT_EQ(OpLabel(std::string(100, 'x')).text(), std::string(39, 'x'));
  EXPECT_EQ(OpLabel("unit 3").text(), "unit 3");
}

}  // namespace
}  // namespace capstan::comm

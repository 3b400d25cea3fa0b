// Backends that are not ours: Group must get by with c10d::Backend alone, and ranks find a mismatch
// through a side channel.
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <list>
#include <map>
#include <mutex>
#include <thread>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "capstan/comm/group.h"
#include "capstan/comm/loopback/loopback.h"
#include "capstan/comm/op_history.h"
#include "capstan/comm/own_backend.h"
#include "capstan/comm/side_channel.h"
#include "capstan/comm/watch.h"
#include "tests/support/comm_cases.h"
#include "tests/support/foreign_backend.h"

namespace capstan::comm {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

TEST(ForeignBackend, GivesTheSameBitsAsOurs) {
  for (const int size : {1, 2, 3}) {
    const auto hub = make_loopback_hub(size);
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < size; ++rank) {
      ranks.emplace_back([&, rank] {
        Group group(c10::make_intrusive<test::ForeignBackend>(make_loopback(hub, rank)));
        EXPECT_NO_THROW(check_collectives(group, 1001));
        EXPECT_NO_THROW(check_collectives(group, 20'000));
      });
    }
  }
}

// A watch with the operations it looks at: tickets go first, works last.
struct WatchedRank {
  WatchedRank(std::shared_ptr<SideChannel> channel, Watch::Place place,
              std::function<void(const std::string&)> on_failure)
      : watch(std::move(channel), place, std::move(on_failure)) {}

  OpWork& add(const OpFacts& facts) {
    works.push_back(c10::make_intrusive<OpWork>(0, c10d::OpType::UNKNOWN));
    tickets.push_back(watch.add(facts, *works.back()));
    return *works.back();
  }

  std::vector<c10::intrusive_ptr<OpWork>> works;
  Watch watch;
  std::vector<Watch::Ticket> tickets;
};

TEST(Watch, FindsAMismatchThroughTheStoreAndNamesBothRanks) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::mutex mutex;
  std::vector<std::string> reasons;
  const auto remember = [&](const std::string& reason) {
    const std::lock_guard lock(mutex);
    reasons.push_back(reason);
  };
  std::list<WatchedRank> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back(make_store_channel(store, "group."), Watch::Place{rank, 3}, remember);
    ranks.back().add({.kind = OpKind::barrier}).complete();
    ranks.back().add({.kind = OpKind::all_gather, .elems = rank == 2 ? 12 : 10});
  }
  const auto deadline = std::chrono::steady_clock::now() + 30s;
  while (std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(50ms);
    const std::lock_guard lock(mutex);
    if (reasons.size() == 3) break;
  }
  ranks.clear();
  ASSERT_EQ(reasons.size(), 3u);
  for (const std::string& reason : reasons) {
    EXPECT_THAT(reason, AllOf(HasSubstr("collective #2 does not match"),
                              HasSubstr("rank 2 issued all_gather of 12 uint8"),
                              HasSubstr("issued all_gather of 10 uint8")));
  }
}

TEST(Watch, IsSilentAboutSlowOperationsThatMatch) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::atomic<int> alarms = 0;
  std::list<WatchedRank> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back(make_store_channel(store, "group."), Watch::Place{rank, 2},
                       [&](const std::string&) { ++alarms; });
    ranks.back().add({.kind = OpKind::all_gather, .elems = 10, .label = OpLabel("a")});
  }
  std::this_thread::sleep_for(2500ms);
  EXPECT_EQ(alarms, 0);
}

TEST(Watch, TellsPeersThatWaitWhyARankGaveUp) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::promise<std::string> told;
  WatchedRank waits(make_store_channel(store, "group."), Watch::Place{.rank = 0, .size = 2},
                    [&](const std::string& reason) { told.set_value(reason); });
  waits.add({.kind = OpKind::all_gather, .elems = 10});
  {
    WatchedRank gives_up(make_store_channel(store, "group."), Watch::Place{.rank = 1, .size = 2},
                         [](const std::string&) {});
    gives_up.watch.give_up("the data file is gone");
  }  // ends at once: it is told all the same
  auto reason = told.get_future();
  ASSERT_EQ(reason.wait_for(60s), std::future_status::ready);
  EXPECT_EQ(reason.get(), "the data file is gone");
}

TEST(Watch, TellsARankThatWaitsForOnePeerToo) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::promise<std::string> told;
  WatchedRank waits(make_store_channel(store, "group."), Watch::Place{.rank = 0, .size = 2},
                    [&](const std::string& reason) { told.set_value(reason); });
  const auto never = c10::make_intrusive<OpWork>(0, c10d::OpType::UNKNOWN);
  const Watch::Ticket ticket = waits.watch.add_to_peer(*never);
  WatchedRank gives_up(make_store_channel(store, "group."), Watch::Place{.rank = 1, .size = 2},
                       [](const std::string&) {});
  auto reason = told.get_future();
  EXPECT_EQ(reason.wait_for(1500ms), std::future_status::timeout);  // it may take its time
  gives_up.watch.give_up("the data file is gone");
  ASSERT_EQ(reason.wait_for(60s), std::future_status::ready);
  EXPECT_EQ(reason.get(), "the data file is gone");
}

// Nothing stalls here: a backend that moves the bytes of different units of one size.
TEST(Watch, FindsOrdersThatDifferAlthoughEveryOperationEnds) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::array<std::promise<std::string>, 2> told;
  std::list<WatchedRank> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back(make_store_channel(store, "group."), Watch::Place{rank, 2},
                       [&, rank](const std::string& reason) {
                         told[static_cast<std::size_t>(rank)].set_value(reason);
                       });
    for (int i = 1; i <= 70; ++i) {
      const bool skipped = rank == 1 && i == 40;
      ranks.back()
          .add({.kind = OpKind::all_gather, .elems = 10, .label = OpLabel(skipped ? "c" : "b")})
          .complete();
    }
  }
  for (auto& reason : told) {
    auto future = reason.get_future();
    ASSERT_EQ(future.wait_for(60s), std::future_status::ready);
    EXPECT_EQ(future.get(),
              "ranks 0 and 1 gather different units (b, c): collective #40 does not match: rank 0 "
              "issued all_gather of 10 uint8 (b); rank 1 issued all_gather of 10 uint8 (c)");
  }
}

TEST(OpHistory, ComparesOnlyWhatBothHave) {
  OpHistory ours;
  OpHistory theirs;
  EXPECT_EQ(ours.last_page(), "");
  const OpFacts gather{.kind = OpKind::all_gather, .elems = 10, .label = OpLabel("b")};
  for (int i = 0; i < 100; ++i) theirs.add(gather);
  EXPECT_EQ(ours.compare(0, 1, theirs.last_page()), "");  // not there yet
  for (int i = 0; i < 100; ++i) ours.add(gather);
  EXPECT_EQ(ours.compare(0, 1, theirs.last_page()), "");
  for (int i = 0; i < 100'000; ++i) ours.add(gather);
  EXPECT_EQ(ours.compare(0, 1, theirs.last_page()), "");  // too long ago
  EXPECT_EQ(ours.compare(0, 1, "not a page"), "");
}

TEST(OpHistory, TellsThatOrdersPartedBeforeThePage) {
  OpHistory ours;
  OpHistory theirs;
  ours.add({.kind = OpKind::barrier});
  theirs.add({.kind = OpKind::all_gather, .elems = 1});
  for (int i = 0; i < 64; ++i) {
    ours.add({.kind = OpKind::barrier});
    theirs.add({.kind = OpKind::barrier});
  }
  EXPECT_EQ(ours.compare(0, 1, theirs.last_page()),
            "ranks 0 and 1 issued different collectives before #33");
}

TEST(Watch, TellsWhenAnOperationTakesLongerThanTheTimeout) {
  std::promise<std::string> told;
  WatchedRank rank(make_store_channel(c10::make_intrusive<c10d::HashStore>(), "group."),
                   Watch::Place{.rank = 0, .size = 2, .timeout = 1200ms},
                   [&](const std::string& reason) { told.set_value(reason); });
  rank.add({.kind = OpKind::all_gather, .elems = 10});
  auto reason = told.get_future();
  ASSERT_EQ(reason.wait_for(30s), std::future_status::ready);
  EXPECT_THAT(reason.get(), HasSubstr("rank 0: all_gather of 10 uint8 did not finish within"));
}

TEST(Watch, LeavesWorksToTheirOwners) {
  WatchedRank rank(make_store_channel(c10::make_intrusive<c10d::HashStore>(), "group."),
                   Watch::Place{.rank = 0, .size = 2}, [](const std::string&) {});
  rank.add({.kind = OpKind::barrier}).complete();
  rank.add({.kind = OpKind::barrier});
  for (const auto& work : rank.works) EXPECT_EQ(work.use_count(), 1u);
  rank.tickets.clear();
  rank.works.clear();  // under the eyes of a watch that runs on
  std::this_thread::sleep_for(700ms);
}

}  // namespace
}  // namespace capstan::comm

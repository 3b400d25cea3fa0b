// Backends that are not ours: Group must get by with c10d::Backend alone, and ranks find a mismatch
// through a side channel.
#include <atomic>
#include <chrono>
#include <future>
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

TEST(Watch, FindsAMismatchThroughTheStoreAndNamesBothRanks) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::mutex mutex;
  std::vector<std::string> reasons;
  const auto remember = [&](const std::string& reason) {
    const std::lock_guard lock(mutex);
    reasons.push_back(reason);
  };
  std::vector<std::unique_ptr<Watch>> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(std::make_unique<Watch>(make_store_channel(store, "group."),
                                            Watch::Place{rank, 3}, remember));
    auto finished = c10::make_intrusive<OpWork>(rank, c10d::OpType::UNKNOWN);
    finished->complete();
    ranks.back()->add({.kind = OpKind::barrier}, finished);
    ranks.back()->add({.kind = OpKind::all_gather, .elems = rank == 2 ? 12 : 10},
                      c10::make_intrusive<OpWork>(rank, c10d::OpType::UNKNOWN));
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
  std::vector<std::unique_ptr<Watch>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(std::make_unique<Watch>(make_store_channel(store, "group."),
                                            Watch::Place{rank, 2},
                                            [&](const std::string&) { ++alarms; }));
    ranks.back()->add({.kind = OpKind::all_gather, .elems = 10, .label = OpLabel(rank ? "b" : "a")},
                      c10::make_intrusive<OpWork>(rank, c10d::OpType::UNKNOWN));
  }
  std::this_thread::sleep_for(2500ms);
  EXPECT_EQ(alarms, 0);
}

TEST(Watch, TellsWhenAnOperationTakesLongerThanTheTimeout) {
  std::promise<std::string> told;
  Watch watch(make_store_channel(c10::make_intrusive<c10d::HashStore>(), "group."),
              Watch::Place{.rank = 0, .size = 2, .timeout = 1200ms},
              [&](const std::string& reason) { told.set_value(reason); });
  watch.add({.kind = OpKind::all_gather, .elems = 10},
            c10::make_intrusive<OpWork>(0, c10d::OpType::UNKNOWN));
  auto reason = told.get_future();
  ASSERT_EQ(reason.wait_for(30s), std::future_status::ready);
  EXPECT_THAT(reason.get(), HasSubstr("rank 0: all_gather of 10 uint8 did not finish within"));
}

}  // namespace
}  // namespace capstan::comm

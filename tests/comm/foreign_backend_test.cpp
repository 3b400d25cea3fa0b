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

namespace capstan::comm {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

// Loopback without what makes it ours.
class ForeignBackend final : public c10d::Backend {
 public:
  explicit ForeignBackend(c10::intrusive_ptr<c10d::Backend> inner)
      : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {}

  const std::string getBackendName() const override { return "foreign"; }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& out, at::Tensor& in,
                                                 const c10d::AllgatherOptions& how) override {
    return inner_->_allgather_base(out, in, how);
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& out, at::Tensor& in,
                                               std::vector<std::int64_t>& out_splits,
                                               std::vector<std::int64_t>& in_splits,
                                               const c10d::AllToAllOptions& how) override {
    return inner_->alltoall_base(out, in, out_splits, in_splits, how);
  }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& how) override {
    return inner_->broadcast(tensors, how);
  }
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& how) override {
    return inner_->barrier(how);
  }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    return inner_->send(tensors, to, tag);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from,
                                      int tag) override {
    return inner_->recv(tensors, from, tag);
  }

 private:
  const c10::intrusive_ptr<c10d::Backend> inner_;
};

TEST(ForeignBackend, GivesTheSameBitsAsOurs) {
  for (const int size : {1, 2, 3}) {
    const auto hub = make_loopback_hub(size);
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < size; ++rank) {
      ranks.emplace_back([&, rank] {
        Group group(c10::make_intrusive<ForeignBackend>(make_loopback(hub, rank)));
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

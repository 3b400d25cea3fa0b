// Operations over Gloo: tags keep them apart, whatever single ranks send each other in between.
#include "capstan/comm/tagged_backend.h"

#include <atomic>
#include <chrono>
#include <future>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "capstan/base/error.h"
#include "capstan/comm/group.h"
#include "capstan/comm/loopback/loopback.h"
#include "capstan/comm/side_channel.h"

namespace capstan::comm {
namespace {

// A transfer that nobody completes: it ends when it is aborted.
class StuckWork final : public c10d::Work {
 public:
  StuckWork() : ended_(end_.get_future()) {}
  bool wait(std::chrono::milliseconds) override {
    ended_.get();
    throw std::runtime_error("aborted");
  }
  void abort() override { end_.set_value(); }

 private:
  std::promise<void> end_;
  std::future<void> ended_;
};

// As Gloo's: tells that it has ended only after somebody waited.
class WaitedWork final : public c10d::Work {
 public:
  explicit WaitedWork(c10::intrusive_ptr<c10d::Work> inner) : inner_(std::move(inner)) {}
  bool isCompleted() override { return waited_; }
  bool wait(std::chrono::milliseconds timeout) override {
    waited_ = inner_->wait(timeout);
    return waited_;
  }

 private:
  const c10::intrusive_ptr<c10d::Work> inner_;
  std::atomic<bool> waited_ = false;
};

// Takes itself for Gloo, and remembers the tags of what it moves.
class NamedGloo final : public c10d::Backend {
 public:
  explicit NamedGloo(c10::intrusive_ptr<c10d::Backend> inner)
      : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {}

  const std::string getBackendName() const override { return "gloo"; }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    tags.push_back(tag);
    return c10::make_intrusive<WaitedWork>(inner_->send(tensors, to, tag));
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from,
                                      int tag) override {
    tags.push_back(tag);
    if (stuck) return c10::make_intrusive<StuckWork>();
    return c10::make_intrusive<WaitedWork>(inner_->recv(tensors, from, tag));
  }

  std::vector<int> tags;
  bool stuck = false;

 private:
  const c10::intrusive_ptr<c10d::Backend> inner_;
};

TEST(TaggedBackend, SendsBetweenTwoRanksLeaveTheTagsOfCollectivesEqual) {
  const auto hub = make_loopback_hub(3);
  std::mutex mutex;
  std::set<int> tags_of_barrier;
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      ranks.emplace_back([&, rank] {
        const auto gloo = c10::make_intrusive<NamedGloo>(make_loopback(hub, rank));
        Group group(gloo);
        if (rank == 0) group.send(at::ones({4}), 1).wait();
        if (rank == 1) group.recv(at::ones({4}), 0).wait();
        gloo->tags.clear();
        group.barrier().wait();
        const std::lock_guard lock(mutex);
        tags_of_barrier.insert(gloo->tags.begin(), gloo->tags.end());
      });
    }
  }
  EXPECT_EQ(tags_of_barrier.size(), 1u);
}

TEST(TaggedBackend, KeepsOffTheTagsOfTheProgramsOwnSends) {
  const auto hub = make_loopback_hub(2);
  const auto sender = c10::make_intrusive<NamedGloo>(make_loopback(hub, 0));
  const auto receiver = c10::make_intrusive<NamedGloo>(make_loopback(hub, 1));
  Group first(sender);
  Group second(receiver);
  PendingOp sent = first.send(at::ones({4}), 1);
  second.recv(at::ones({4}), 0).wait();
  sent.wait();
  EXPECT_GE(sender->tags.at(0), 1 << 30);
  EXPECT_EQ(sender->tags, receiver->tags);
}

// One rank of two, whose peer sends when the test says so.
struct Receiver {
  explicit Receiver(GroupOptions options = {})
      : group(c10::make_intrusive<NamedGloo>(make_loopback(hub, 0)), std::move(options)) {}

  std::shared_ptr<LoopbackHub> hub = make_loopback_hub(2);
  Group group;
  Group peer{c10::make_intrusive<NamedGloo>(make_loopback(hub, 1))};
};

bool seen_within(const PendingOp& op, std::chrono::seconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!op.done() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return op.done();
}

TEST(TaggedBackend, AnArrivalIsSeenByWhoDoesNotWait) {
  Receiver rank;
  const at::Tensor values = at::zeros({4});
  PendingOp received = rank.group.recv(values, 1);
  EXPECT_FALSE(received.done());
  EXPECT_FALSE(received.done());
  PendingOp sent = rank.peer.send(at::ones({4}), 0);
  EXPECT_TRUE(seen_within(received, std::chrono::seconds(60)));
  EXPECT_TRUE(values.eq(1).all().item<bool>());
  received.wait();
  EXPECT_TRUE(seen_within(sent, std::chrono::seconds(60)));
}

TEST(TaggedBackend, AWaitAfterAQuestionEndsWithTheOperation) {
  Receiver rank;
  const at::Tensor values = at::zeros({4});
  PendingOp received = rank.group.recv(values, 1);
  EXPECT_FALSE(received.done());
  std::jthread peer([&] { rank.peer.send(at::ones({4}), 0).wait(); });
  received.wait();
  EXPECT_TRUE(values.eq(1).all().item<bool>());
}

// Its bytes are long there; the group must not take it for one that never ends.
TEST(TaggedBackend, WhatHasEndedIsNotLateBecauseNobodyWaitsForIt) {
  Receiver rank({.timeout = std::chrono::milliseconds(1000),
                 .side_channel = make_store_channel(c10::make_intrusive<c10d::HashStore>(), "")});
  PendingOp received = rank.group.recv(at::zeros({4}), 1);
  rank.peer.send(at::ones({4}), 0).wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(2600));
  EXPECT_FALSE(rank.group.failed());
  received.wait();
}

TEST(TaggedBackend, WhatNobodyWaitsForEndsWithItsGroup) {
  const auto gloo = c10::make_intrusive<NamedGloo>(make_loopback(make_loopback_hub(2), 0));
  gloo->stuck = true;
  Group group(gloo);
  EXPECT_FALSE(group.recv(at::ones({4}), 1).done());
}

TEST(TaggedBackend, AnAbortEndsAReceive) {
  const auto gloo = c10::make_intrusive<NamedGloo>(make_loopback(make_loopback_hub(2), 0));
  gloo->stuck = true;
  Group group(gloo);
  PendingOp received = group.recv(at::ones({4}), 1);
  group.abort("stage 1 failed");
  try {
    received.wait();
    FAIL() << "it cannot end well";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("stage 1 failed"));
  }
}

}  // namespace
}  // namespace capstan::comm

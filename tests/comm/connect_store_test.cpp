#include "capstan/comm/connect_store.h"

#include <chrono>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "capstan/base/error.h"

namespace capstan::comm {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// On a port that the system chose, which stays taken.
c10::intrusive_ptr<c10d::TCPStore> open_store() {
  c10d::TCPStoreOptions how;
  how.port = 0;
  how.isServer = true;
  how.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", how);
}

std::string refusal(const RankEnv& env, std::chrono::milliseconds timeout) {
  try {
    connect_store(env, timeout);
  } catch (const CommError& error) {
    return error.what();
  }
  return "it was found";
}

TEST(ConnectStore, FindsTheStoreOfRankZero) {
  const auto served = open_store();
  const auto store = connect_store(
      {.rank = 1, .world_size = 2, .master_addr = "127.0.0.1", .master_port = served->getPort()},
      30s);
  store->set("a", std::vector<std::uint8_t>{7});
  EXPECT_EQ(store->get("a"), std::vector<std::uint8_t>{7});
}

TEST(ConnectStore, SaysInPlainWordsThatNobodyAnswers) {
  int port = 0;
  {
    port = open_store()->getPort();
  }
  const std::string text = refusal(
      {.rank = 1, .world_size = 2, .master_addr = "127.0.0.1", .master_port = port}, 1000ms);
  EXPECT_THAT(text, AllOf(HasSubstr("rank 1 found nobody at 127.0.0.1:" + std::to_string(port)),
                          HasSubstr("within 1.0 s"), HasSubstr("MASTER_ADDR")));
  EXPECT_THAT(text, AllOf(Not(HasSubstr("Exception")), Not(HasSubstr(".cpp"))));  // nobody else's
}

TEST(ConnectStore, SaysThatThePortIsTaken) {
  const auto other = open_store();
  const std::string text =
      refusal({.rank = 0, .world_size = 2, .master_port = other->getPort()}, 5s);
  EXPECT_THAT(text, AllOf(HasSubstr("cannot open port"), HasSubstr("another MASTER_PORT"),
                          Not(HasSubstr(".cpp"))));
}

}  // namespace
}  // namespace capstan::comm

#include "capstan/store/host_sums.h"

#include <string>

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace capstan::store {
namespace {

struct Told final : SumWatcher {
  void leaves(int key, const at::Tensor& /*part*/, bool alone) override {
    text += (alone ? "first " : "next ") + std::to_string(key) + ", ";
  }
  void complete(int key, Arrival /*arrival*/) override {
    text += "complete " + std::to_string(key) + ", ";
  }
  void changes(int key) override { text += "changes " + std::to_string(key) + ", "; }
  std::string text;
};

class HostSumsTest : public testing::Test {
 protected:
  static at::Tensor part(double value, at::ScalarType dtype = at::kBFloat16) {
    return at::full({100}, value, dtype);
  }
  Ledger ledger_;
  std::unique_ptr<Pool> pool_ = Pool::of_host(ledger_, "", /*pinned=*/false);
  HostTraffic traffic_{c10::kCPU};
  Told told_;
  HostSums sums_{2, at::kFloat, traffic_, *pool_, told_};
};

// 256 + 1 is no number of bf16.
TEST_F(HostSumsTest, OnePartKeepsItsDtypeAndSeveralAreAddedInTheirs) {
  sums_.behind(1, part(256), "unit");
  sums_.settle();
  EXPECT_EQ(sums_.take(1).scalar_type(), at::kBFloat16);
  sums_.behind(1, part(1), "unit");
  sums_.behind(1, part(1), "unit");
  sums_.behind(1, part(1), "unit");  // more than are on their way at a time
  sums_.settle();
  EXPECT_EQ(sums_.take(1).scalar_type(), at::kFloat);
  EXPECT_TRUE(sums_.take(1).eq(259).all().item<bool>());
  EXPECT_FALSE(sums_.take(0).defined());
}

TEST_F(HostSumsTest, BeginAnewAfterClearInTheSameMemory) {
  sums_.behind(0, part(3), "unit");
  sums_.behind(0, part(4), "unit");
  sums_.settle();
  const std::int64_t held = ledger_.now().total();
  const void* const memory = sums_.take(0).const_data_ptr();
  for (int step = 0; step < 3; ++step) {
    sums_.clear();
    sums_.behind(0, part(5), "unit");
    sums_.settle();
    EXPECT_TRUE(sums_.take(0).eq(5).all().item<bool>());
    EXPECT_EQ(sums_.take(0).const_data_ptr(), memory);
  }
  EXPECT_EQ(ledger_.now().total(), held);
}

// Whoever reads a sum must know when it is complete, and let go before it changes.
TEST_F(HostSumsTest, TellBeforeASumChangesAndWhenItIsComplete) {
  sums_.behind(0, part(1), "unit");
  EXPECT_EQ(told_.text, "first 0, complete 0, ");
  told_.text.clear();
  sums_.behind(0, part(1), "unit");
  EXPECT_EQ(told_.text, "next 0, ");
  sums_.settle();
  EXPECT_EQ(told_.text, "next 0, changes 0, complete 0, ");
}

}  // namespace
}  // namespace capstan::store

#include "capstan/device/facts.h"

#include <gtest/gtest.h>

namespace capstan::device {
namespace {

TEST(DeviceFacts, AreThereOrTheReasonIs) {
  const std::vector<DeviceFacts> devices = list_devices();
  EXPECT_EQ(devices.empty(), !why_no_devices().empty());
  for (const DeviceFacts& facts : devices) {
    EXPECT_FALSE(facts.name.empty());
    EXPECT_GT(facts.memory_bytes, 0);
    EXPECT_LE(facts.free_bytes, facts.memory_bytes);
    EXPECT_GT(facts.major, 0);
  }
}

}  // namespace
}  // namespace capstan::device

#include "capstan/device/host_buffer.h"

#include <cstdint>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/device/facts.h"

namespace capstan::device {
namespace {

TEST(HostBuffer, IsAlignedAndOfExactlyTheSizeAskedFor) {
  for (const std::int64_t bytes : {1, 63, 4096, 4097, 1'000'003}) {
    const HostBuffer buffer(bytes);
    EXPECT_EQ(buffer.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % kHostAlignBytes, 0);
    std::memset(buffer.data(), 1, bytes);
  }
}

TEST(HostBuffer, OfNoBytesHoldsNothing) {
  const HostBuffer buffer(0);
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_TRUE(buffer.span().empty());
}

TEST(HostBuffer, MovesItsMemory) {
  HostBuffer first(100);
  std::byte* const memory = first.data();
  HostBuffer second(std::move(first));
  EXPECT_EQ(second.data(), memory);
  HostBuffer third(7);
  third = std::move(second);
  EXPECT_EQ(third.data(), memory);
  EXPECT_EQ(third.bytes(), 100);
}

TEST(HostBuffer, SaysSoWhenThereIsNotEnoughMemory) {
  EXPECT_THROW(HostBuffer(std::numeric_limits<std::int64_t>::max() / 2), ConfigError);
}

TEST(HostBuffer, IsPinnedWhereThereIsADeviceAndRefusesElsewhere) {
  if (list_devices().empty()) {
    EXPECT_THROW(HostBuffer(4096, HostMemory::pinned), ConfigError);
    return;
  }
  const HostBuffer buffer(4097, HostMemory::pinned);
  EXPECT_TRUE(buffer.is_pinned());
}

}  // namespace
}  // namespace capstan::device

#include "capstan/checkpoint/past_cache.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace capstan::checkpoint {
namespace {

TEST(PastCache, CopiesEveryLengthAndAlignmentAndNothingBeside) {
  std::vector<std::byte> from(40'000);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
  for (const std::size_t size : {0, 1, 63, 64, 65, 127, 128, 129, 258, 16'447, 33'000}) {
    for (const std::size_t source : {0, 1, 16}) {
      for (std::size_t target = 1; target < 66; target += 8) {
        std::vector<std::byte> into(40'000);
        copy_past_cache(std::span(from).subspan(source, size), into.data() + target);
        for (std::size_t i = 0; i < into.size(); ++i) {
          const bool inside = i >= target && i < target + size;
          ASSERT_EQ(into[i], inside ? from[source + i - target] : std::byte{0})
              << size << " bytes from " << source << " to " << target << ", at " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace capstan::checkpoint

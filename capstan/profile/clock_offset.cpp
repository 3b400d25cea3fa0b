#include "capstan/profile/clock_offset.h"

#include <algorithm>

namespace capstan::profile {

double clock_offset_us(const std::vector<PingPong>& exchanges) {
  const auto best = std::ranges::min_element(
      exchanges, {}, [](const PingPong& each) { return each.returned_us - each.sent_us; });
  if (best == exchanges.end()) return 0;
  return (best->sent_us + best->returned_us) / 2 - best->answered_us;
}

}  // namespace capstan::profile

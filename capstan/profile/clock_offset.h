// How far the clocks of two machines are apart, from messages that went to and fro.
#pragma once

#include <vector>

namespace capstan::profile {

// One message and its answer, in microseconds.
struct PingPong {
  double sent_us = 0;      // by our clock
  double answered_us = 0;  // by the other's
  double returned_us = 0;  // by ours
};

// What to add to the other's times to have them on our clock. The quickest exchange says it best:
// it is wrong by half its duration at most. 0 where there is none.
double clock_offset_us(const std::vector<PingPong>& exchanges);

}  // namespace capstan::profile

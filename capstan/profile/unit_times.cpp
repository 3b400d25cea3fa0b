#include "capstan/profile/unit_times.h"

#include <algorithm>
#include <set>

namespace capstan::profile {
namespace {

struct Boundary {
  double time_us = 0;
  std::size_t span = 0;
  bool begins = false;
};

}  // namespace

std::map<std::pair<std::string, std::string>, double> unit_times(
    const std::vector<TimelineSpan>& spans) {
  std::vector<Boundary> boundaries;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const bool counts =
        spans[i].lane == Lane::compute || (spans[i].lane == Lane::wait && spans[i].computes);
    if (!counts) continue;
    boundaries.push_back({spans[i].begin_us, i, true});
    boundaries.push_back({spans[i].end_us, i, false});
  }
  std::ranges::stable_sort(boundaries, {}, &Boundary::time_us);
  std::map<std::pair<std::string, std::string>, double> times;
  std::set<std::pair<double, std::size_t>> computing;  // by begin
  int waits = 0;
  double now = 0;
  for (const Boundary& boundary : boundaries) {
    if (waits == 0 && !computing.empty()) {
      const TimelineSpan& last = spans[computing.rbegin()->second];
      times[{last.unit, last.name}] += boundary.time_us - now;
    }
    now = boundary.time_us;
    const TimelineSpan& span = spans[boundary.span];
    if (span.lane == Lane::wait) {
      waits += boundary.begins ? 1 : -1;
    } else if (boundary.begins) {
      computing.emplace(span.begin_us, boundary.span);
    } else {
      computing.erase({span.begin_us, boundary.span});
    }
  }
  return times;
}

}  // namespace capstan::profile

#include "capstan/shard/use_trace.h"

#include <algorithm>
#include <set>

namespace capstan::shard {

void UseTrace::use(int unit) {
  current_.push_back(unit);
  if (recorded_.empty()) return;
  const auto from = recorded_.begin() + static_cast<std::ptrdiff_t>(position_);
  if (from != recorded_.end() && *from == unit) {
    ++position_;
    lost_ = false;
    return;
  }
  ++surprises_;
  const auto found = std::find(from, recorded_.end(), unit);
  lost_ = found == recorded_.end();
  if (!lost_) position_ = static_cast<std::size_t>(found - recorded_.begin()) + 1;
}

void UseTrace::end_pass() {
  if (!current_.empty()) recorded_ = std::move(current_);
  current_.clear();
  position_ = 0;
  lost_ = recorded_.empty();
}

std::span<const int> UseTrace::upcoming() const {
  if (lost_) return {};
  return std::span(recorded_).subspan(position_);
}

std::optional<std::int64_t> UseTrace::distance(int unit,
                                               std::span<const std::int64_t> weights) const {
  std::int64_t sum = 0;
  std::set<int> seen;
  for (const int next : upcoming()) {
    if (next == unit) return sum;
    if (seen.insert(next).second) sum += weights[static_cast<std::size_t>(next)];
  }
  return std::nullopt;
}

}  // namespace capstan::shard

#include "capstan/engine/rates.h"

#include <algorithm>

namespace capstan::engine {

std::vector<double> Rates::after(std::int64_t steps) const {
  if (!schedule.has_value()) return base;
  std::vector<double> rates;
  const std::size_t groups = std::max<std::size_t>(1, base.size());
  rates.reserve(groups);
  for (std::size_t g = 0; g < groups; ++g) {
    rates.push_back(schedule->at(steps, static_cast<int>(g)).lr);
  }
  return rates;
}

std::optional<double> Rates::momentum_after(std::int64_t steps) const {
  if (!schedule.has_value()) return std::nullopt;
  return schedule->at(steps, 0).momentum;
}

}  // namespace capstan::engine

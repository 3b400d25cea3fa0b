// The learning rate of each parameter group, and what moves it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "capstan/schedule/schedule.h"

namespace capstan::engine {

struct Rates {
  std::vector<double> base;  // by group; none where the optimizer knows its own
  std::optional<schedule::Schedule> schedule;

  // Of the step after so many.
  std::vector<double> after(std::int64_t steps) const;
  std::optional<double> momentum_after(std::int64_t steps) const;
};

}  // namespace capstan::engine

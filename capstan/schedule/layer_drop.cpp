#include "capstan/schedule/layer_drop.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "capstan/base/counter_random.h"
#include "capstan/base/error.h"

namespace capstan::schedule {

void check(const LayerDrop& drop) {
  if (drop.theta >= 0 && drop.theta <= 1 && drop.gamma >= 0) return;
  throw ConfigError({.what = "theta is " + std::to_string(drop.theta) + " and gamma " +
                             std::to_string(drop.gamma),
                     .where = "progressive_layer_drop",
                     .fix = "give a theta from 0 to 1, and a gamma of at least 0"});
}

double theta_at(const LayerDrop& drop, std::int64_t t) {
  return (1.0 - drop.theta) * std::exp(-drop.gamma * static_cast<double>(t)) + drop.theta;
}

double theta_of_step(const LayerDrop& drop, std::int64_t step) {
  return theta_at(drop, std::max<std::int64_t>(step - 2, 0));
}

std::vector<double> branch_scales(int layers, double theta, std::uint64_t seed) {
  std::vector<double> scales;
  for (int layer = 1; layer <= layers; ++layer) {
    const double kept = 1.0 - static_cast<double>(layer) / layers * (1.0 - theta);
    const bool keeps = uniform_number(seed, static_cast<std::uint64_t>(layer)) < kept;
    scales.push_back(keeps ? 1.0 / kept : 0.0);
  }
  return scales;
}

}  // namespace capstan::schedule

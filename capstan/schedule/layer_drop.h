// Progressive layer drop as a pure function: which layers a forward leaves out, and how much the
// others count. Whoever computes the same forward draws the same layers.
#pragma once

#include <cstdint>
#include <vector>

#include "capstan/schedule/options.h"

namespace capstan::schedule {

// Throws ConfigError.
void check(const LayerDrop& drop);

// (1 - theta) e^(-gamma t) + theta: how often the last layer is kept at time t.
double theta_at(const LayerDrop& drop, std::int64_t t);

// Of a step that is counted from 1: its time is that of the last complete step, counted from 0, as
// users of DeepSpeed's configuration know it. So the first two steps keep all layers.
double theta_of_step(const LayerDrop& drop, std::int64_t step);

// By layer: 0 where it is dropped, else 1 / its probability to be kept. Of layers 1 to L that is
// 1 - (layer / L) (1 - theta): the first are hardly ever dropped. `seed` stands for the forward:
// the same one, the same layers.
std::vector<double> branch_scales(int layers, double theta, std::uint64_t seed);

}  // namespace capstan::schedule

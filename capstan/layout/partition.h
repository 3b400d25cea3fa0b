// Cuts a row of items into contiguous parts. Pure arithmetic.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace capstan::layout {

// Where each part begins, and the end: parts + 1 numbers, part i is [result[i], result[i + 1]).
// Sizes differ by at most one, the larger ones first; with fewer items than parts the last are
// empty. Requires parts >= 1.
std::vector<std::int64_t> even_cuts(std::int64_t items, int parts);

// Likewise, so that the heaviest part is as light as it can be. Weights are not negative.
std::vector<std::int64_t> balanced_cuts(std::span<const double> weights, int parts);

}  // namespace capstan::layout

// Cuts a row of items into contiguous parts. Pure arithmetic.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace capstan::layout {

// Where each part begins, and the end: parts + 1 numbers, part i is [result[i], result[i + 1]).
// Sizes differ by at most one, the larger ones first; with fewer items than parts the last are
// empty. Requires parts >= 1.
std::vector<std::int64_t> even_cuts(std::int64_t items, int parts);

// Likewise, so that the heaviest part is as light as it can be and then the lightest as heavy; of
// equal ways the one whose last parts are smallest. Weights are not negative.
std::vector<std::int64_t> balanced_cuts(std::span<const double> weights, int parts);

// The cost of giving items [begin, end) to a part; infinity forbids it.
using PartCost = std::function<double(int part, std::int64_t begin, std::int64_t end)>;

// Likewise, no part empty, so that the largest cost of a part is as small as it can be; of equal
// ways the one whose last parts have fewest items. Nothing where every way is forbidden. Requires
// 1 <= parts <= items.
std::optional<std::vector<std::int64_t>> cheapest_cuts(std::int64_t items, int parts,
                                                       const PartCost& cost);

}  // namespace capstan::layout

#include "capstan/layout/partition.h"

#include <algorithm>
#include <limits>

namespace capstan::layout {

std::vector<std::int64_t> even_cuts(std::int64_t items, int parts) {
  std::vector<std::int64_t> cuts;
  const std::int64_t size = items / parts;
  const std::int64_t larger = items % parts;
  for (int part = 0; part <= parts; ++part) {
    cuts.push_back(part * size + std::min<std::int64_t>(part, larger));
  }
  return cuts;
}

std::vector<std::int64_t> balanced_cuts(std::span<const double> weights, int parts) {
  const std::size_t count = weights.size();
  if (count <= static_cast<std::size_t>(parts)) return even_cuts(std::ssize(weights), parts);
  std::vector<double> sums(count + 1, 0);
  for (std::size_t i = 0; i < count; ++i) sums[i + 1] = sums[i] + weights[i];
  // best[i]: the lightest heaviest part of the first i items, in as many parts as rounds were made;
  // cut[k][i]: where the last of k parts then begins.
  std::vector<double> best(count + 1, std::numeric_limits<double>::infinity());
  best[0] = 0;
  std::vector<std::vector<std::size_t>> cut(static_cast<std::size_t>(parts) + 1,
                                            std::vector<std::size_t>(count + 1, 0));
  for (std::size_t k = 1; k < cut.size(); ++k) {
    std::vector<double> next(count + 1, std::numeric_limits<double>::infinity());
    for (std::size_t i = 1; i <= count; ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        const double heaviest = std::max(best[j], sums[i] - sums[j]);
        if (heaviest < next[i]) {
          next[i] = heaviest;
          cut[k][i] = j;
        }
      }
    }
    best = std::move(next);
  }
  std::vector<std::int64_t> cuts = {static_cast<std::int64_t>(count)};
  std::size_t end = count;
  for (std::size_t k = cut.size() - 1; k > 0; --k) {
    end = cut[k][end];
    cuts.push_back(static_cast<std::int64_t>(end));
  }
  std::reverse(cuts.begin(), cuts.end());
  return cuts;
}

}  // namespace capstan::layout

#include "capstan/layout/partition.h"

#include <algorithm>
#include <limits>

namespace capstan::layout {
namespace {

constexpr double kForbidden = std::numeric_limits<double>::infinity();

}  // namespace

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
  const std::int64_t count = std::ssize(weights);
  if (count <= parts) return even_cuts(count, parts);
  std::vector<double> sums = {0};
  for (const double weight : weights) sums.push_back(sums.back() + weight);
  const auto weight_of = [&](std::int64_t begin, std::int64_t end) {
    return sums[end] - sums[begin];
  };
  const auto plain = [&](int /*part*/, std::int64_t begin, std::int64_t end) {
    return weight_of(begin, end);
  };
  const std::vector<std::int64_t> cuts = cheapest_cuts(count, parts, plain).value();
  double heaviest = 0;
  for (int part = 0; part < parts; ++part) {
    heaviest = std::max(heaviest, weight_of(cuts[part], cuts[part + 1]));
  }
  const auto lightest = [&](int /*part*/, std::int64_t begin, std::int64_t end) {
    const double weight = weight_of(begin, end);
    return weight <= heaviest ? -weight : kForbidden;
  };
  return cheapest_cuts(count, parts, lightest).value();
}

std::optional<std::vector<std::int64_t>> cheapest_cuts(std::int64_t items, int parts,
                                                       const PartCost& cost) {
  const auto count = static_cast<std::size_t>(items);
  // best[i]: the least largest cost for the first i items, in as many parts as rounds were made;
  // cut[k][i]: where the last of k + 1 parts then begins.
  std::vector<double> best(count + 1, kForbidden);
  best[0] = -kForbidden;
  std::vector<std::vector<std::size_t>> cut(static_cast<std::size_t>(parts),
                                            std::vector<std::size_t>(count + 1, 0));
  for (int part = 0; part < parts; ++part) {
    std::vector<double> next(count + 1, kForbidden);
    for (std::size_t i = 1; i <= count; ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (best[j] == kForbidden) continue;
        const double worst = std::max(
            best[j], cost(part, static_cast<std::int64_t>(j), static_cast<std::int64_t>(i)));
        if (worst > next[i]) continue;
        next[i] = worst;
        cut[part][i] = j;
      }
    }
    best = std::move(next);
  }
  if (best[count] == kForbidden) return std::nullopt;
  std::vector<std::int64_t> cuts = {items};
  for (int part = parts - 1; part >= 0; --part) {
    cuts.push_back(static_cast<std::int64_t>(cut[part][cuts.back()]));
  }
  std::reverse(cuts.begin(), cuts.end());
  return cuts;
}

}  // namespace capstan::layout

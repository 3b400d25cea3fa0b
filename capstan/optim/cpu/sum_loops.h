// Loops that add up squares in fp64, in an order that no vector width or thread count changes.
#pragma once

#include <cstdint>

#include "capstan/optim/cpu/access.h"
#include "capstan/optim/cpu/kernel_table.h"

namespace capstan::optim {

// kSumLanes running sums, held in as many vectors as that takes. Element i of a block always goes
// to lane i % kSumLanes, in order of i, whatever the width.
template <typename Vec>
struct LaneSums {
  static constexpr int kVectors = kSumLanes / Vec::kWidth;
  typename Vec::SquareSums vectors[kVectors];

  // The lanes join in a fixed tree, after `tail`, the squares of a last row that is not full.
  double total(const double* tail) const {
    double lanes[kSumLanes];
    for (int k = 0; k < kVectors; ++k) vectors[k].store(lanes + k * Vec::kWidth);
    for (int lane = 0; lane < kSumLanes; ++lane) lanes[lane] += tail[lane];
    for (int half = kSumLanes / 2; half > 0; half /= 2) {
      for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    return lanes[0];
  }
};

template <typename Vec, typename Tail>
double run_sum_squares(ConstColumn column, Part part) {
  LaneSums<Vec> sums;
  std::int64_t i = part.begin;
  for (; i + kSumLanes <= part.end; i += kSumLanes) {
    for (int k = 0; k < LaneSums<Vec>::kVectors; ++k) {
      sums.vectors[k].add(load<Vec>(column, i + k * Vec::kWidth));
    }
  }
  double tail[kSumLanes] = {};
  for (int lane = 0; i < part.end; ++i, ++lane) {
    typename Tail::SquareSums one;
    one.add(load<Tail>(column, i));
    one.store(&tail[lane]);
  }
  const double total = sums.total(tail);
  Vec::leave();
  return total;
}

// The moments are stored first and read back, so that a 16-bit state takes part in the direction as
// it will in the second phase.
template <typename V>
Lanes<V> prepare_lamb_lanes(const LambConstants& constants, const Span& span, std::int64_t i) {
  Lanes<V> x;
  x.grad = load<V>(span.grad, i);
  x.master = load<V>(span.master, i);
  for (int s = 0; s < 2; ++s) x.states[s] = load<V>(span.states[s], i);
  update_lamb_moments(constants, x);
  for (int s = 0; s < 2; ++s) {
    store(x.states[s], span.states[s], i);
    x.states[s] = load<V>(span.states[s], i);
  }
  x.grad = lamb_direction(constants, x);
  return x;
}

template <typename Vec, typename Tail>
LambSums run_lamb_prepare(const LambConstants& constants_in, const Span& span_in, Part part) {
  const LambConstants constants = constants_in;
  const Span span = span_in;
  LaneSums<Vec> master, update;
  std::int64_t i = part.begin;
  for (; i + kSumLanes <= part.end; i += kSumLanes) {
    for (int k = 0; k < LaneSums<Vec>::kVectors; ++k) {
      const Lanes<Vec> x = prepare_lamb_lanes<Vec>(constants, span, i + k * Vec::kWidth);
      master.vectors[k].add(x.master);
      update.vectors[k].add(x.grad);
    }
  }
  double master_tail[kSumLanes] = {};
  double update_tail[kSumLanes] = {};
  for (int lane = 0; i < part.end; ++i, ++lane) {
    const Lanes<Tail> x = prepare_lamb_lanes<Tail>(constants, span, i);
    typename Tail::SquareSums one, two;
    one.add(x.master);
    one.store(&master_tail[lane]);
    two.add(x.grad);
    two.store(&update_tail[lane]);
  }
  const LambSums totals = {master.total(master_tail), update.total(update_tail)};
  Vec::leave();
  return totals;
}

}  // namespace capstan::optim

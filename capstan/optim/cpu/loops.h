// The loops around math.h, written once over a vector type: every kernel source instantiates
// make_kernel_table with its own. Tail handles what does not fill a vector.
#pragma once

#include <cstdint>

#include "capstan/optim/cpu/kernel_table.h"

namespace capstan::optim {

template <typename Vec>
Vec load(ConstColumn column, std::int64_t at) {
  switch (column.dtype) {
    case DType::bf16:
      return Vec::load_bf16(static_cast<const std::uint16_t*>(column.data) + at);
    case DType::fp16:
      return Vec::load_fp16(static_cast<const std::uint16_t*>(column.data) + at);
    case DType::fp32:
      break;
  }
  return Vec::load(static_cast<const float*>(column.data) + at);
}

template <typename Vec>
Vec load(Column column, std::int64_t at) {
  return load<Vec>(ConstColumn{column.data, column.dtype}, at);
}

// The dtypes are constant over a loop, so these branches are always predicted; a template per
// combination of dtypes would be hundreds of copies of each kernel and no faster.
template <typename Vec>
void store(Vec x, Column column, std::int64_t at) {
  switch (column.dtype) {
    case DType::bf16:
      return x.store_bf16(static_cast<std::uint16_t*>(column.data) + at);
    case DType::fp16:
      return x.store_fp16(static_cast<std::uint16_t*>(column.data) + at);
    case DType::fp32:
      return x.store(static_cast<float*>(column.data) + at);
  }
}

template <typename Vec>
void store_master(Vec x, const Span& span, std::int64_t at) {
  store(x, span.master, at);
  if (span.param.data != nullptr) store(x, span.param, at);
}

// Calls body.template operator()<V>(i) for the start of every vector of the part, then of the tail.
template <typename Vec, typename Tail, typename Body>
void for_each_vector(Part part, const Body& body) {
  std::int64_t i = part.begin;
  for (; i + Vec::kWidth <= part.end; i += Vec::kWidth) body.template operator()<Vec>(i);
  for (; i < part.end; ++i) body.template operator()<Tail>(i);
  Vec::leave();
}

// Rule and span are taken by value into the loop, so that the compiler knows no store can change
// them.
template <typename Vec, typename Tail, typename Rule>
void run_update(const Rule& rule_in, const Span& span_in, Part part) {
  const Rule rule = rule_in;
  const Span span = span_in;
  for_each_vector<Vec, Tail>(part, [rule, span]<typename V>(std::int64_t i) {
    Lanes<V> x;
    x.grad = load<V>(span.grad, i);
    x.master = load<V>(span.master, i);
    for (int s = 0; s < Rule::kStates; ++s) x.states[s] = load<V>(span.states[s], i);
    rule(x);
    for (int s = 0; s < Rule::kStates; ++s) store(x.states[s], span.states[s], i);
    store_master(x.master, span, i);
  });
}

template <typename Vec, typename Tail>
void run_lamb_apply(const LambApplyRule& apply_in, const Span& span_in, Part part) {
  const LambApplyRule apply = apply_in;
  const Span span = span_in;
  for_each_vector<Vec, Tail>(part, [apply, span]<typename V>(std::int64_t i) {
    Lanes<V> x;
    x.master = load<V>(span.master, i);
    for (int s = 0; s < 2; ++s) x.states[s] = load<V>(span.states[s], i);
    apply(x);
    store_master(x.master, span, i);
  });
}

template <typename Vec, typename Tail>
void run_convert(Column to, ConstColumn from, Part part) {
  for_each_vector<Vec, Tail>(
      part, [to, from]<typename V>(std::int64_t i) { store(load<V>(from, i), to, i); });
}

template <typename Vec, typename Tail>
void run_accumulate(Column to, ConstColumn from, Part part) {
  for_each_vector<Vec, Tail>(part, [to, from]<typename V>(std::int64_t i) {
    store(load<V>(to, i) + load<V>(from, i), to, i);
  });
}

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

template <typename Vec, typename Tail>
constexpr KernelTable make_kernel_table() {
  return {.adam = run_update<Vec, Tail, AdamRule>,
          .sgd = run_update<Vec, Tail, SgdRule>,
          .sgd_momentum = run_update<Vec, Tail, SgdMomentumRule>,
          .lion = run_update<Vec, Tail, LionRule>,
          .adagrad = run_update<Vec, Tail, AdagradRule>,
          .lamb_prepare = run_lamb_prepare<Vec, Tail>,
          .lamb_apply = run_lamb_apply<Vec, Tail>,
          .sum_squares = run_sum_squares<Vec, Tail>,
          .convert = run_convert<Vec, Tail>,
          .accumulate = run_accumulate<Vec, Tail>};
}

}  // namespace capstan::optim

// The element-wise loops around math.h, written once over a vector type. Tail handles what does not
// fill a vector. Rule and span are copied into each loop, so that the compiler knows that no store
// can change them.
#pragma once

#include <cstdint>

#include "capstan/optim/cpu/access.h"
#include "capstan/optim/cpu/kernel_table.h"

namespace capstan::optim {

// Calls body.template operator()<V>(i) for the start of every vector of the part, then of the tail.
template <typename Vec, typename Tail, typename Body>
void for_each_vector(Part part, const Body& body) {
  std::int64_t i = part.begin;
  for (; i + Vec::kWidth <= part.end; i += Vec::kWidth) body.template operator()<Vec>(i);
  for (; i < part.end; ++i) body.template operator()<Tail>(i);
  Vec::leave();
}

// Writes an updated master and its copy.
template <typename Vec>
void store_master(Vec x, const Span& span, std::int64_t at, bool streams) {
  store(x, span.master, at);
  if (span.param.data == nullptr) return;
  streams ? stream(x, span.param, at) : store(x, span.param, at);
}

template <typename Vec, typename Tail, typename Rule>
void run_update(const Rule& rule_in, const Span& span_in, Part part) {
  const Rule rule = rule_in;
  const Span span = span_in;
  const bool streams = can_stream<Vec>(span.param, part);
  for_each_vector<Vec, Tail>(part, [rule, span, streams]<typename V>(std::int64_t i) {
    prefetch_after<V>(span.grad, i);
    prefetch_after<V>(span.master, i);
    for (int s = 0; s < Rule::kStates; ++s) prefetch_after<V>(span.states[s], i);
    Lanes<V> x;
    x.grad = load<V>(span.grad, i);
    x.master = load<V>(span.master, i);
    for (int s = 0; s < Rule::kStates; ++s) x.states[s] = load<V>(span.states[s], i);
    rule(x);
    for (int s = 0; s < Rule::kStates; ++s) store(x.states[s], span.states[s], i);
    store_master(x.master, span, i, streams);
  });
}

template <typename Vec, typename Tail>
void run_lamb_apply(const LambApplyRule& rule_in, const Span& span_in, Part part) {
  const LambApplyRule rule = rule_in;
  const Span span = span_in;
  const bool streams = can_stream<Vec>(span.param, part);
  for_each_vector<Vec, Tail>(part, [rule, span, streams]<typename V>(std::int64_t i) {
    prefetch_after<V>(span.master, i);
    for (int s = 0; s < 2; ++s) prefetch_after<V>(span.states[s], i);
    Lanes<V> x;
    x.master = load<V>(span.master, i);
    for (int s = 0; s < 2; ++s) x.states[s] = load<V>(span.states[s], i);
    rule(x);
    store_master(x.master, span, i, streams);
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

}  // namespace capstan::optim

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

template <typename Vec>
void write(Vec x, Column column, std::int64_t at, bool streams) {
  streams ? stream(x, column, at) : store(x, column, at);
}

// Writes an updated master and its copy.
template <typename Vec>
void store_master(Vec x, const Span& span, std::int64_t at, bool streams) {
  store(x, span.master, at);
  if (span.param.data != nullptr) write(x, span.param, at, streams);
}

template <typename V, typename Rule>
Lanes<V> load_lanes(const Span& span, std::int64_t at) {
  prefetch_after<V>(span.grad, at);
  prefetch_after<V>(span.master, at);
  for (int s = 0; s < Rule::kStates; ++s) prefetch_after<V>(span.states[s], at);
  Lanes<V> x;
  x.grad = load<V>(span.grad, at);
  x.master = load<V>(span.master, at);
  for (int s = 0; s < Rule::kStates; ++s) x.states[s] = load<V>(span.states[s], at);
  return x;
}

// Instead of the loop in place: what is read and what is written are different memory.
template <typename Vec, typename Tail, typename Rule>
void run_fresh_update(const Rule& rule, const Span& span, Part part) {
  bool streams = can_stream<Vec>(span.fresh_master, span.elems, part);
  for (int s = 0; s < Rule::kStates; ++s) {
    streams = streams && can_stream<Vec>(span.fresh_states[s], span.elems, part);
  }
  const bool streams_param = can_stream<Vec>(span.param, span.elems, part);
  for_each_vector<Vec, Tail>(
      part, [rule, span, streams, streams_param]<typename V>(std::int64_t i) {
        constexpr bool kWhole = V::kWidth == Vec::kWidth;  // the tail's vectors are not aligned
        Lanes<V> x = load_lanes<V, Rule>(span, i);
        rule(x);
        for (int s = 0; s < Rule::kStates; ++s) {
          write(x.states[s], span.fresh_states[s], i, streams && kWhole);
        }
        write(x.master, span.fresh_master, i, streams && kWhole);
        if (span.param.data != nullptr) write(x.master, span.param, i, streams_param && kWhole);
      });
}

template <typename Vec, typename Tail, typename Rule>
void run_update(const Rule& rule_in, const Span& span_in, Part part) {
  if (span_in.fresh_master.data != nullptr) {
    return run_fresh_update<Vec, Tail>(rule_in, span_in, part);
  }
  const Rule rule = rule_in;
  const Span span = span_in;
  const bool streams = can_stream<Vec>(span.param, span.elems, part);
  for_each_vector<Vec, Tail>(part, [rule, span, streams]<typename V>(std::int64_t i) {
    Lanes<V> x = load_lanes<V, Rule>(span, i);
    rule(x);
    for (int s = 0; s < Rule::kStates; ++s) store(x.states[s], span.states[s], i);
    store_master(x.master, span, i, streams);
  });
}

template <typename Vec, typename Tail>
void run_lamb_apply(const LambApplyRule& rule_in, const Span& span_in, Part part) {
  const LambApplyRule rule = rule_in;
  const Span span = span_in;
  const bool streams = can_stream<Vec>(span.param, span.elems, part);
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

// The cases that every instruction set and the GPU must answer with the same bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "capstan/optim/lamb.h"
#include "capstan/optim/update.h"
#include "tests/optim/columns.h"

namespace capstan::optim {

struct Variant {
  std::string label;
  Kind kind;
  HyperParams hyper;
};

inline std::vector<Variant> variants() {
  return {{"adam", Kind::adam, {.weight_decay = 0.01}},
          {"adam_plain", Kind::adam, {.bias_correction = false}},
          {"adamw", Kind::adamw, {.weight_decay = 0.1}},
          {"sgd", Kind::sgd, {.weight_decay = 0.01}},
          {"sgd_momentum", Kind::sgd, {.momentum = 0.9, .dampening = 0.1}},
          {"sgd_nesterov", Kind::sgd, {.weight_decay = 0.01, .momentum = 0.9, .nesterov = true}},
          {"lion", Kind::lion, {.beta2 = 0.99, .weight_decay = 0.1}},
          {"adagrad", Kind::adagrad, {.eps = 1e-10, .weight_decay = 0.01}},
          {"lamb", Kind::lamb, {.weight_decay = 0.01}},
          {"lamb_inside", Kind::lamb, {.eps_inside_sqrt = true}}};
}

struct Dtypes {
  DType master, grad, state, param;
};

inline constexpr DType kAllDtypes[] = {DType::fp32, DType::bf16, DType::fp16};

// Everything a step of one kind writes, as bits.
using Outcome = std::vector<std::vector<std::uint32_t>>;

struct Case {
  Variant variant;
  Dtypes dtypes;
  std::int64_t elems;
  int offset;
  bool awkward;
};

// One step of the case's optimizer over columns in host memory; LAMB also gives its trust ratio.
using Stepper = std::function<double(const Case&, const StepScalars&, const Span&)>;

// Two steps, the second of which finds the states of the first.
inline Outcome run_case(const Case& c, const Stepper& step_with) {
  const auto values = [&](unsigned seed) {
    return c.awkward ? awkward_values(c.elems, seed) : normal_values(c.elems, seed);
  };
  TestColumn master(c.dtypes.master, values(1), c.offset);
  TestColumn grad(c.dtypes.grad, values(2), c.offset);
  TestColumn first(c.dtypes.state, values(3), c.offset);
  TestColumn second(c.dtypes.state, magnitudes(values(4)), c.offset);
  TestColumn param(c.dtypes.param, values(5), c.offset);
  const bool sum_only = c.variant.kind == Kind::adagrad;
  const Span span = {.master = master.column(),
                     .grad = grad.view(),
                     .states = {sum_only ? second.column() : first.column(), second.column()},
                     .param = param.column(),
                     .elems = c.elems};
  Outcome outcome;
  for (const std::int64_t step : {1, 7}) {
    const StepScalars scalars = {.lr = 1e-2, .step = step, .grad_factor = 0.125};
    const double ratio = step_with(c, scalars, span);
    outcome.push_back({std::bit_cast<std::uint32_t>(
        static_cast<float>(std::isnan(ratio) ? std::numeric_limits<double>::quiet_NaN() : ratio))});
  }
  for (TestColumn* column : {&master, &first, &second, &param}) {
    EXPECT_TRUE(column->neighbours_untouched()) << c.variant.label << " elems=" << c.elems;
    outcome.push_back(column->bits());
  }
  return outcome;
}

inline std::string text_of(const Case& c) {
  return c.variant.label + " elems=" + std::to_string(c.elems) +
         " offset=" + std::to_string(c.offset) + " grad=" + std::string(name(c.dtypes.grad)) +
         " state=" + std::string(name(c.dtypes.state)) +
         " master=" + std::string(name(c.dtypes.master)) +
         " param=" + std::string(name(c.dtypes.param));
}

// On the CPU, with the kernels of one instruction set.
inline Stepper cpu_stepper(const CpuRun& run) {
  return [&run](const Case& c, const StepScalars& scalars, const Span& span) {
    if (c.variant.kind != Kind::lamb) {
      update(c.variant.kind, c.variant.hyper, scalars, span, run);
      return 1.0;
    }
    const double ratio =
        lamb_trust_ratio(c.variant.hyper, lamb_prepare(c.variant.hyper, scalars, span, run));
    lamb_apply(c.variant.hyper, scalars, ratio, span, run);
    return ratio;
  };
}

// Every variant at offsets [0, offsets) from an aligned address.
inline std::vector<Case> misaligned_cases(int offsets) {
  std::vector<Case> cases;
  for (const Variant& variant : variants()) {
    for (int offset = 0; offset < offsets; ++offset) {
      cases.push_back(
          {variant, {DType::fp32, DType::fp16, DType::fp32, DType::fp16}, 37, offset, false});
    }
  }
  return cases;
}

// Every variant over zeros, infinities, NaN and denormals.
inline std::vector<Case> awkward_cases() {
  std::vector<Case> cases;
  for (const Variant& variant : variants()) {
    for (const DType grad : kAllDtypes) {
      cases.push_back({variant, {DType::fp32, grad, DType::fp32, DType::bf16}, 1000, 0, true});
    }
  }
  return cases;
}

}  // namespace capstan::optim

#include "capstan/optim/update.h"

#include <array>
#include <string>

#include "capstan/base/error.h"
#include "capstan/optim/cpu/kernel_table.h"
#include "capstan/optim/cpu/split.h"

namespace capstan::optim {
namespace {

constexpr std::array<std::string_view, 2> kMoments = {"exp_avg", "exp_avg_sq"};
constexpr std::array<std::string_view, 1> kFirstMoment = {"exp_avg"};
constexpr std::array<std::string_view, 1> kMomentumBuffer = {"momentum_buffer"};
constexpr std::array<std::string_view, 1> kSum = {"sum"};

template <typename Rule>
void run_rule(UpdateKernel<Rule> kernel, const Rule& rule, const Span& span, WorkerPool& pool) {
  for_parts(pool, span.elems, [&](Part part) { kernel(rule, span, part); });
}

// The problems of one group, one per line, each beginning with `place`.
std::string problems_of(const HyperParams& hyper, const std::string& place) {
  std::string text;
  const auto need = [&](bool good, const std::string& problem) {
    if (!good) text += "\n  " + place + problem;
  };
  const auto in_unit = [](double x) { return x >= 0.0 && x < 1.0; };
  need(hyper.lr >= 0.0, "lr is " + std::to_string(hyper.lr) + ", must not be negative");
  need(in_unit(hyper.beta1), "beta1 is " + std::to_string(hyper.beta1) + ", must be in [0, 1)");
  need(in_unit(hyper.beta2), "beta2 is " + std::to_string(hyper.beta2) + ", must be in [0, 1)");
  need(hyper.eps >= 0.0, "eps is " + std::to_string(hyper.eps) + ", must not be negative");
  need(hyper.weight_decay >= 0.0,
       "weight_decay is " + std::to_string(hyper.weight_decay) + ", must not be negative");
  need(hyper.momentum >= 0.0,
       "momentum is " + std::to_string(hyper.momentum) + ", must not be negative");
  need(!hyper.nesterov || (hyper.momentum > 0.0 && hyper.dampening == 0.0),
       "nesterov needs momentum above 0 and dampening 0");
  need(hyper.lr_decay >= 0.0 && hyper.initial_accumulator >= 0.0,
       "lr_decay and initial_accumulator must not be negative");
  need(hyper.min_coeff <= hyper.max_coeff, "min_coeff is above max_coeff");
  return text;
}

}  // namespace

std::span<const std::string_view> state_names(Kind kind, const HyperParams& hyper) {
  switch (kind) {
    case Kind::adam:
    case Kind::adamw:
    case Kind::lamb:
      return kMoments;
    case Kind::lion:
      return kFirstMoment;
    case Kind::adagrad:
      return kSum;
    case Kind::sgd:
      break;
  }
  if (hyper.momentum == 0.0) return {};
  return kMomentumBuffer;
}

double initial_state(Kind kind, const HyperParams& hyper) {
  return kind == Kind::adagrad ? hyper.initial_accumulator : 0.0;
}

void check(const Options& options) {
  std::string problems = problems_of(options.hyper, "");
  for (std::size_t i = 0; i < options.groups.size(); ++i) {
    problems += problems_of(options.groups[i].hyper, "group " + std::to_string(i) + ": ");
  }
  if (problems.empty()) return;
  throw ConfigError({.what = "the optimizer cannot run with these values:" + problems,
                     .where = "optimizer " + std::string(name(options.kind)),
                     .fix = "correct the values above"});
}

void update(Kind kind, const HyperParams& hyper, const StepScalars& scalars, const Span& span,
            const CpuRun& run) {
  const KernelTable& kernels = kernels_for(run.simd);
  switch (kind) {
    case Kind::adam:
    case Kind::adamw:
      return run_rule(kernels.adam, AdamRule{adam_constants(kind, hyper, scalars)}, span, run.pool);
    case Kind::sgd:
      if (state_names(kind, hyper).empty()) {
        return run_rule(kernels.sgd, SgdRule{sgd_constants(hyper, scalars)}, span, run.pool);
      }
      return run_rule(kernels.sgd_momentum, SgdMomentumRule{sgd_constants(hyper, scalars)}, span,
                      run.pool);
    case Kind::lion:
      return run_rule(kernels.lion, LionRule{lion_constants(hyper, scalars)}, span, run.pool);
    case Kind::adagrad:
      return run_rule(kernels.adagrad, AdagradRule{adagrad_constants(hyper, scalars)}, span,
                      run.pool);
    case Kind::lamb:
      break;
  }
  throw InternalError({.what = "lamb was stepped as one phase", .where = "optim::update"});
}

}  // namespace capstan::optim

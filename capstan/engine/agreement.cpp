#include "capstan/engine/agreement.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/comm/numbers.h"
#include "capstan/engine/together.h"
#include "capstan/pipeline/schedules.h"
#include "capstan/schedule/schedule.h"

namespace capstan::engine {
namespace {

// As text: one pair after another, with characters between them that no value has.
constexpr char kBetween = '\x1f';
constexpr char kAfter = '\x1e';

std::string to_text(const SharedValues& values) {
  std::string text;
  for (const auto& [what, value] : values) text += what + kBetween + value + kAfter;
  return text;
}

SharedValues from_text(std::string_view text) {
  SharedValues values;
  for (const std::string& pair : split(text, kAfter)) {
    const std::size_t between = pair.find(kBetween);
    if (between == std::string::npos) continue;
    values.emplace_back(pair.substr(0, between), pair.substr(between + 1));
  }
  return values;
}

std::string to_text(const optim::HyperParams& hyper) {
  return fmt::format(
      "lr {} betas {} {} eps {} weight decay {} bias correction {} momentum {} {} {} "
      "adagrad {} {} lamb {} {} {}",
      hyper.lr, hyper.beta1, hyper.beta2, hyper.eps, hyper.weight_decay, hyper.bias_correction,
      hyper.momentum, hyper.dampening, hyper.nesterov, hyper.lr_decay, hyper.initial_accumulator,
      hyper.max_coeff, hyper.min_coeff, hyper.eps_inside_sqrt);
}

// Of one stage of several, without the names: a front end may list those of its own parameters.
std::string to_text(const optim::Options& optimizer, bool is_stage) {
  std::string text = fmt::format("{} {}", optim::name(optimizer.kind), to_text(optimizer.hyper));
  for (const optim::Group& group : optimizer.groups) {
    text += fmt::format("; {}: {}",
                        is_stage ? "a group" : fmt::format("{}", fmt::join(group.patterns, " ")),
                        to_text(group.hyper));
  }
  return text;
}

// By the rates that it gives: two that differ do so early, or in powers of ten.
std::string to_text(const schedule::Options& options, double lr) {
  const schedule::Schedule schedule(options, {lr});
  std::vector<double> rates;
  for (const std::int64_t step : {0, 1, 2, 10, 100, 1000, 10'000, 100'000, 1'000'000}) {
    rates.push_back(schedule.at(step, 0).lr);
  }
  return fmt::format("rates {}", fmt::join(rates, ", "));
}

std::string to_text(const precision::Options& precision) {
  const precision::LossScaleOptions& scale = precision.loss_scale;
  return fmt::format(
      "parameters {}, gradients {}, on the wire {}, masters {}, states {}, look for "
      "overflow {}, loss scale {} 2^{} every {} hysteresis {} {} at least {}",
      name(precision.params), name(precision.grad_accum), name(precision.reduce_dtype()),
      name(precision.master), name(precision.optimizer_state), precision.check_grad_overflow,
      scale.static_scale, scale.initial_scale_power, scale.window_steps, scale.hysteresis,
      scale.consecutive_hysteresis, scale.min_scale);
}

std::string difference(const SharedValues& ours, const SharedValues& theirs,
                       std::array<int, 2> ranks) {
  const auto at = [](const SharedValues& values, std::size_t i) {
    return i < values.size() ? values[i] : std::pair<std::string, std::string>("nothing", "");
  };
  for (std::size_t i = 0; i < std::max(ours.size(), theirs.size()); ++i) {
    const auto [what, value] = at(ours, i);
    const auto [their_what, their_value] = at(theirs, i);
    if (what == their_what && value == their_value) continue;
    const bool same = what == their_what;
    return fmt::format(
        "ranks {} and {} do not have the same configuration: {} is {} on rank {}, "
        "and {}{} on rank {}",
        ranks[0], ranks[1], what, value, ranks[0], same ? "" : fmt::format("{} is ", their_what),
        their_value, ranks[1]);
  }
  return "";
}

}  // namespace

SharedValues shared_values(const Options& options) {
  SharedValues values = {
      {"shard.stage", fmt::format("{}", options.shard.stage)},
      {"shard.reduce_schedule",
       options.shard.reduce_schedule.value_or(
           shard::default_reduce_schedule(options.shard.stage)) == shard::ReduceSchedule::at_step
           ? "at_step"
           : "per_backward"},
      {"mesh", fmt::format("pipe {}, sequence {}, tensor {}", options.mesh.pipe,
                           options.mesh.sequence, options.mesh.tensor)},
      {"gradient_clipping", fmt::format("{}", options.gradient_clipping)},
      {"batch", fmt::format("{} samples, {} at a time, {} backwards, managed {}",
                            options.batch.train_samples, options.batch.micro_samples,
                            options.batch.accumulation_steps, options.batch.managed_accumulation)},
      {"precision", to_text(options.precision)},
      {"comm", fmt::format("{}, prescaled {}, divided by {} before the sum",
                           options.comm.reduce_op == comm::ReduceOp::sum ? "sum" : "mean",
                           options.comm.prescale_gradients, options.comm.predivide_factor)},
      {"shard.check_ranks", fmt::format("{}", options.shard.check_ranks)},
  };
  if (options.mesh.pipe > 1) {
    values.emplace_back("pipeline.schedule",
                        std::string(pipeline::to_string(options.pipeline.schedule)));
  }
  if (options.optimizer.has_value()) {
    values.emplace_back("optimizer", to_text(*options.optimizer, options.mesh.pipe > 1));
  }
  if (options.schedule.has_value()) {
    const double lr = options.optimizer.has_value() ? options.optimizer->hyper.lr : 1;
    values.emplace_back("schedule", to_text(*options.schedule, lr));
  }
  return values;
}

void check_agreement(comm::Group& group, c10::Device device, const SharedValues& mine) {
  const std::string text = to_text(mine);
  const auto sign = static_cast<std::int64_t>(comm::mix(0, text));
  const std::vector<std::int64_t> signs =
      comm::from_all_ranks(group, device, sign, "configuration");
  const auto odd = std::ranges::find_if(signs, [&](std::int64_t s) { return s != signs[0]; });
  if (odd == signs.end()) return;
  const std::array<int, 2> ranks = {0, static_cast<int>(odd - signs.begin())};
  const SharedValues first = from_text(text_from(group, device, text, ranks[0]));
  const SharedValues other = from_text(text_from(group, device, text, ranks[1]));
  throw ConfigError({.what = difference(first, other, ranks),
                     .where = fmt::format("group {}", group.name()),
                     .fix = "give every rank the same configuration, optimizer and learning rate"});
}

}  // namespace capstan::engine

#include "capstan/precision/loss_scale.h"

#include <algorithm>

#include <fmt/format.h>

namespace capstan::precision {
namespace {

constexpr double kFactor = LossScaleOptions::kFactor;

ScaleEvent overflow(const LossScaleOptions& options, LossScaleState& state) {
  if (state.tolerance > 1) {
    --state.tolerance;
    return ScaleEvent::tolerated;
  }
  if (state.scale <= options.min_scale) return ScaleEvent::at_minimum;
  state.scale = std::max(state.scale / kFactor, options.min_scale);
  return ScaleEvent::halved;
}

// Clean steps are counted from the one after the latest overflow (or the very first), which itself
// does not count: the first doubling takes window + 1 clean steps, the later ones `window`.
ScaleEvent clean(const LossScaleOptions& options, LossScaleState& state) {
  if (options.consecutive_hysteresis) state.tolerance = options.hysteresis;
  const std::int64_t run = state.steps - state.last_overflow - 1;
  if (run <= 0 || run % options.window_steps != 0) return ScaleEvent::kept;
  state.scale *= kFactor;
  state.tolerance = options.hysteresis;
  return ScaleEvent::grown;
}

ScaleEvent advance(const Options& options, LossScaleState& state, bool overflowed) {
  if (!options.scale_is_dynamic()) return overflowed ? ScaleEvent::skipped : ScaleEvent::kept;
  if (!overflowed) return clean(options.loss_scale, state);
  const ScaleEvent event = overflow(options.loss_scale, state);
  state.last_overflow = state.steps;
  return event;
}

std::string culprit(const std::string& bad_param) {
  return bad_param.empty() ? "a gradient" : fmt::format("the gradient of '{}'", bad_param);
}

}  // namespace

LossFactor split_factor(double factor, DType loss) {
  constexpr double kLargestPower = 32768;  // of two, in fp16
  if (loss != DType::fp16 || factor <= kLargestPower) return {factor, 1};
  return {kLargestPower, factor / kLargestPower};
}

LossScaleState initial_loss_scale(const Options& options) {
  const LossScaleOptions& scale = options.loss_scale;
  LossScaleState state = {.tolerance = scale.hysteresis};
  if (options.scale_is_dynamic()) {
    state.scale = scale.initial_scale();
  } else if (options.scales_loss()) {
    state.scale = scale.static_scale;
  }
  return state;
}

LossScaleStep next_loss_scale(const Options& options, const LossScaleState& state,
                              bool overflowed) {
  LossScaleStep step = {.state = state, .event = ScaleEvent::kept};
  step.event = advance(options, step.state, overflowed);
  ++step.state.steps;
  step.state.skipped_in_a_row = overflowed ? state.skipped_in_a_row + 1 : 0;
  const std::int64_t limit = options.max_skipped_in_a_row;
  if (limit > 0 && step.state.skipped_in_a_row >= limit && !stops_run(step.event)) {
    step.event = ScaleEvent::too_many_skipped;
  }
  return step;
}

std::string skip_report(const LossScaleState& before, const LossScaleStep& after,
                        const std::string& bad_param) {
  std::string text = fmt::format("step skipped: {} is not finite", culprit(bad_param));
  if (after.state.scale != before.scale) {
    text += fmt::format("; loss scale {} -> {}", before.scale, after.state.scale);
  } else if (after.event == ScaleEvent::tolerated) {
    text += fmt::format("; loss scale stays {}, halved after {} more", before.scale,
                        after.state.tolerance);
  } else if (before.scale != 1.0) {
    text += fmt::format("; loss scale stays {}", before.scale);
  }
  return text + fmt::format(" ({} skipped in a row)", after.state.skipped_in_a_row);
}

ErrorInfo stop_error(const LossScaleStep& step, const std::string& bad_param) {
  if (step.event == ScaleEvent::at_minimum) {
    return {.what = fmt::format("{} is not finite although the loss scale is at its minimum, {}",
                                culprit(bad_param), step.state.scale),
            .where = "loss scale",
            .fix =
                "check whether the loss itself is inf or NaN, lower the learning rate, or train in "
                "bf16"};
  }
  return {.what = fmt::format("{} steps in a row were skipped; in the last one {} is not finite",
                              step.state.skipped_in_a_row, culprit(bad_param)),
          .where = "max_skipped_in_a_row",
          .fix =
              "check whether the loss itself is inf or NaN, lower the learning rate, or allow more "
              "skipped steps"};
}

std::map<std::string, double> save(const Options& options, const LossScaleState& state) {
  std::map<std::string, double> fields = {
      {"scale", state.scale},
      {"steps", static_cast<double>(state.steps)},
      {"last_overflow", static_cast<double>(state.last_overflow)},
      {"tolerance", static_cast<double>(state.tolerance)},
      {"skipped_in_a_row", static_cast<double>(state.skipped_in_a_row)}};
  if (!options.scale_is_dynamic()) return fields;
  const LossScaleOptions& rules = options.loss_scale;
  fields["factor"] = kFactor;
  fields["window_steps"] = static_cast<double>(rules.window_steps);
  fields["hysteresis"] = rules.hysteresis;
  fields["consecutive_hysteresis"] = rules.consecutive_hysteresis ? 1 : 0;
  fields["min_scale"] = rules.min_scale;
  return fields;
}

LossScaleState restore_loss_scale(const std::map<std::string, double>& fields) {
  const auto field = [&](const std::string& name) {
    const auto found = fields.find(name);
    if (found != fields.end()) return found->second;
    throw ConfigError({.what = "the saved loss scale has no field '" + name + "'",
                       .where = "checkpoint: loss scale",
                       .fix = "load another checkpoint, or start with a fresh loss scale"});
  };
  const auto count = [&](const std::string& name) {
    return static_cast<std::int64_t>(field(name));
  };
  return {.scale = field("scale"),
          .steps = count("steps"),
          .last_overflow = count("last_overflow"),
          .tolerance = count("tolerance"),
          .skipped_in_a_row = count("skipped_in_a_row")};
}

}  // namespace capstan::precision

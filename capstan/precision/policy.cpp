#include "capstan/precision/policy.h"

#include <cmath>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"

namespace capstan::precision {
namespace {

std::string row(std::string_view what, DType dtype) {
  return fmt::format("{:<24}{:<6}{}\n", what, name(dtype), size_bytes(dtype));
}

std::string scale_text(const Options& options) {
  if (!options.scales_loss()) return "none";
  const LossScaleOptions& scale = options.loss_scale;
  if (scale.static_scale > 0.0) return fmt::format("fixed at {}", scale.static_scale);
  return fmt::format("dynamic from {}, doubled after {}, hysteresis {}, minimum {}",
                     std::ldexp(1.0, scale.initial_scale_power),
                     counted(scale.window_steps, "clean step"), scale.hysteresis, scale.min_scale);
}

std::string scale_problems(const LossScaleOptions& scale) {
  std::string problems;
  const auto need = [&](bool good, const std::string& problem) {
    if (!good) problems += "\n  " + problem;
  };
  need(std::isfinite(scale.static_scale) && scale.static_scale >= 0.0,
       fmt::format("static_scale is {}, must be 0 (dynamic) or positive", scale.static_scale));
  if (scale.static_scale > 0.0) return problems;
  need(scale.initial_scale_power >= -126 && scale.initial_scale_power <= 127,
       fmt::format("initial_scale_power is {}, must be in [-126, 127]", scale.initial_scale_power));
  need(scale.window_steps >= 1,
       fmt::format("window_steps is {}, must be at least 1", scale.window_steps));
  need(scale.hysteresis >= 1,
       fmt::format("hysteresis is {}, must be at least 1 (1 halves the scale at every overflow)",
                   scale.hysteresis));
  need(std::isfinite(scale.min_scale) && scale.min_scale > 0.0,
       fmt::format("min_scale is {}, must be positive", scale.min_scale));
  return problems;
}

}  // namespace

void check(const Options& options) {
  std::string problems;
  if (options.master != DType::fp32 && options.master != options.params) {
    problems += fmt::format("\n  master is {}, must be fp32 or the dtype of params, {}",
                            name(options.master), name(options.params));
  }
  if (options.max_skipped_in_a_row < 0) {
    problems += fmt::format("\n  max_skipped_in_a_row is {}, must be 0 (never) or positive",
                            options.max_skipped_in_a_row);
  }
  if (options.scales_loss()) problems += scale_problems(options.loss_scale);
  if (problems.empty()) return;
  throw ConfigError({.what = "the precision options cannot work together:" + problems,
                     .where = "precision::Options",
                     .fix = "correct the values above"});
}

std::string dtype_table(const Options& options) {
  std::string text = fmt::format("{:<24}{:<6}{}\n", "precision", "dtype", "bytes per element");
  text += row("parameters", options.params);
  text += row("gradients on the wire", options.reduce_dtype());
  text += row("gradient shards", options.grad_accum);
  text += row("master", options.master);
  text += row("optimizer state", options.optimizer_state);
  text += options.buffers ? row("buffers", *options.buffers)
                          : fmt::format("{:<24}{}\n", "buffers", "as they are");
  return text + fmt::format("{:<24}{}\n", "loss scale", scale_text(options));
}

}  // namespace capstan::precision

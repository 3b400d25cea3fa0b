#include "capstan/engine/loss.h"

#include <algorithm>

#include <ATen/ops/full_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"

namespace capstan::engine {
namespace {

bool is_half(const at::Tensor& tensor) {
  return tensor.defined() && tensor.scalar_type() == at::kHalf;
}

// Of one output; empty: nothing is wrong.
ErrorInfo problem(const at::Tensor& output, const at::Tensor& gradient) {
  if (!output.defined()) return {.what = "is undefined", .fix = "leave it out"};
  if (!output.is_floating_point()) {
    return {.what = fmt::format("has dtype {}, which has no gradient",
                                c10::toString(output.scalar_type())),
            .fix = "leave it out, with its gradient"};
  }
  if (!output.requires_grad()) {
    return {.what = "does not require a gradient",
            .fix =
                "leave it out, or make sure that it was computed from trainable parameters with "
                "gradients enabled"};
  }
  if (!gradient.defined()) {
    if (output.numel() == 1) return {};
    return {.what = fmt::format("has {} elements but no gradient", output.numel()),
            .fix = "give a gradient of the same shape; only an output of one element needs none"};
  }
  if (gradient.sizes() != output.sizes()) {
    return {.what = fmt::format("has shape [{}] but its gradient has shape [{}]",
                                fmt::join(output.sizes(), ", "), fmt::join(gradient.sizes(), ", ")),
            .fix = "give the gradient with respect to this output, in the same shape"};
  }
  if (!gradient.is_floating_point() || gradient.device() != output.device()) {
    return {.what = fmt::format("is {} on {} but its gradient is {} on {}",
                                c10::toString(output.scalar_type()), output.device().str(),
                                c10::toString(gradient.scalar_type()), gradient.device().str()),
            .fix = "give floating-point gradients on the device of the output"};
  }
  return {};
}

}  // namespace

void check_loss(const at::Tensor& loss, const char* where) {
  if (loss.defined() && loss.numel() == 1 && loss.requires_grad()) return;
  throw ConfigError({.what = "the loss must have one element and require a gradient",
                     .where = where,
                     .fix = "reduce the loss with mean() or sum(), and make sure that it depends "
                            "on trainable parameters"});
}

void check_outputs(const std::vector<at::Tensor>& outputs,
                   const std::vector<at::Tensor>& gradients) {
  constexpr const char* kWhere = "Engine::backward(outputs, gradients)";
  if (outputs.empty() || outputs.size() != gradients.size()) {
    throw ConfigError(
        {.what = fmt::format("{} and {} were given", counted(std::ssize(outputs), "output"),
                             counted(std::ssize(gradients), "gradient")),
         .where = kWhere,
         .fix = "give at least one output, and one gradient for each"});
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    ErrorInfo found = problem(outputs[i], gradients[i]);
    if (found.what.empty()) continue;
    found.what = fmt::format("output {} {}", i, found.what);
    found.where = kWhere;
    throw ConfigError(std::move(found));
  }
}

precision::LossFactor split_factor(double factor, const std::vector<at::Tensor>& outputs,
                                   const std::vector<at::Tensor>& gradients) {
  const bool half =
      std::ranges::any_of(outputs, is_half) || std::ranges::any_of(gradients, is_half);
  return precision::split_factor(factor, half ? DType::fp16 : DType::fp32);
}

std::vector<at::Tensor> seeds(const std::vector<at::Tensor>& outputs,
                              const std::vector<at::Tensor>& gradients, double factor) {
  std::vector<at::Tensor> seeds;
  seeds.reserve(outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor& given = gradients[i];
    if (!given.defined()) {
      seeds.push_back(at::full_like(outputs[i], factor));
    } else {
      seeds.push_back(factor == 1 ? given.detach() : given.detach() * factor);
    }
  }
  return seeds;
}

}  // namespace capstan::engine

#include "capstan/recompute/rng_state.h"

#include <algorithm>
#include <mutex>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>

namespace capstan::recompute {

at::Tensor generator_state(at::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_generator_state(at::Device device, const at::Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

RngState RngState::of_devices(std::span<const at::Tensor> tensors) {
  RngState result;
  const auto add = [&result](at::Device device) {
    const bool known = std::any_of(result.saved_.begin(), result.saved_.end(),
                                   [&](const Saved& saved) { return saved.device == device; });
    if (!known) result.saved_.push_back({device, generator_state(device)});
  };
  add(at::Device(at::kCPU));
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && !tensor.is_cpu() && !tensor.is_meta()) add(tensor.device());
  }
  return result;
}

RngState RngState::refreshed() const {
  RngState result;
  for (const Saved& saved : saved_) {
    result.saved_.push_back({saved.device, generator_state(saved.device)});
  }
  return result;
}

void RngState::restore() const {
  for (const Saved& saved : saved_) set_generator_state(saved.device, saved.state);
}

}  // namespace capstan::recompute

// Remembers the random-number generators of some devices and puts them back, so that a forward
// computed again draws the same dropout masks.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace capstan::recompute {

// Of a device's default generator, as bytes on the CPU.
at::Tensor generator_state(at::Device device);
void set_generator_state(at::Device device, const at::Tensor& state);

// The default generators of the CPU and of every other device that a tensor is on.
class RngState {
 public:
  // The states at this moment; no device is synchronised.
  static RngState of_devices(std::span<const at::Tensor> tensors);

  // The same generators as they are at this moment.
  RngState refreshed() const;
  void restore() const;

 private:
  struct Saved {
    at::Device device;
    at::Tensor state;  // bytes on the CPU
  };
  std::vector<Saved> saved_;
};

// While it lives the generators run from `start`; afterwards they continue as if nothing happened.
class RngReplay {
 public:
  explicit RngReplay(const RngState& start) : outside_(start.refreshed()) { start.restore(); }
  RngReplay(const RngReplay&) = delete;
  RngReplay& operator=(const RngReplay&) = delete;
  // If it throws, the program ends: to go on with other numbers would be worse.
  // NOLINTNEXTLINE(bugprone-exception-escape)
  ~RngReplay() { outside_.restore(); }

 private:
  RngState outside_;
};

}  // namespace capstan::recompute

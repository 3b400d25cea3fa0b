// Random numbers of a rank's own inside split layers, where ranks hold different activations.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace capstan::tensor_parallel {

// While it lives, the device's default generator runs from a seed of this rank's own. Afterwards it
// goes on as if one number had been drawn from it: ranks that agreed before agree again, however
// much each of them drew. The seed follows from the generator alone, so that a forward that is
// computed again draws the same.
// Threads: the generator is the process's; nobody else draws from it meanwhile.
class OwnRandom {
 public:
  OwnRandom(at::Device device, int rank);
  OwnRandom(const OwnRandom&) = delete;
  OwnRandom& operator=(const OwnRandom&) = delete;
  // If it throws, the program ends: to go on with other numbers would be worse.
  // NOLINTNEXTLINE(bugprone-exception-escape)
  ~OwnRandom();

 private:
  at::Generator generator_;
  at::Tensor outside_;  // its state
};

}  // namespace capstan::tensor_parallel

// How busy this rank's GPU is, from the driver's own library where there is one.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace capstan::cli::train {

// The entry of CUDA_VISIBLE_DEVICES that CUDA counts as device `index`: a number or a UUID. The
// index itself where the variable is not set; empty where it has no such entry.
std::string visible_device(const char* variable, int index);

// Threads: one.
class GpuUse {
 public:
  // Null without a driver, or for a device it does not know.
  static std::unique_ptr<GpuUse> open(int index);
  virtual ~GpuUse() = default;

  // Share of the driver's last measuring period (up to a second) in which a kernel ran.
  virtual std::optional<double> read() = 0;
};

}  // namespace capstan::cli::train

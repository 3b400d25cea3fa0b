#include "capstan/engine/emulated_dtype.h"

#include <algorithm>
#include <chrono>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "capstan/base/cpu_isa.h"

namespace capstan::engine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSize = 128;
constexpr int kRepeats = 5;              // the fastest counts: others may use the machine
constexpr double kWorthAWarning = 1.25;  // chosen: below it nobody would change a thing

// Several threads would wait for each other, and on a busy machine for long.
class OneThread {
 public:
  OneThread() { at::set_num_threads(1); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  ~OneThread() { at::set_num_threads(before_); }

 private:
  int before_ = at::get_num_threads();
};

Clock::duration product_time(at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  const at::Tensor matrix = at::ones({kSize, kSize}, at::TensorOptions(dtype));
  at::mm(matrix, matrix);  // kernels are made on first use
  Clock::duration fastest = Clock::duration::max();
  for (int i = 0; i < kRepeats; ++i) {
    const auto began = Clock::now();
    at::mm(matrix, matrix);
    fastest = std::min(fastest, Clock::now() - began);
  }
  return fastest;
}

}  // namespace

std::string emulation_warning(DType params, c10::Device device) {
  if (!device.is_cpu() || computes_natively(params)) return "";
  const OneThread one_thread;
  const auto dtype = params == DType::fp16 ? at::kHalf : at::kBFloat16;
  const std::chrono::duration<double> emulated = product_time(dtype);
  const std::chrono::duration<double> native = product_time(at::kFloat);
  const double factor = emulated / native;
  if (factor < kWorthAWarning) return "";
  return fmt::format(
      "{0} is emulated on this CPU, which has no instructions for it: a matrix product takes "
      "{1:.{2}f} "
      "times as long as in fp32 (just measured). Train in fp32 here, unless the memory that {0} "
      "saves is worth the time",
      name(params), factor, factor < 10 ? 1 : 0);
}

}  // namespace capstan::engine

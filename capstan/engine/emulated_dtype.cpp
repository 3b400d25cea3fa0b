#include "capstan/engine/emulated_dtype.h"

#include <algorithm>
#include <ctime>
#include <limits>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "capstan/base/cpu_isa.h"

namespace capstan::engine {
namespace {

constexpr int kSize = 128;
constexpr int kRepeats = 5;              // the fastest counts
constexpr double kWorthAWarning = 1.25;  // chosen: below it nobody would change a thing

// CPU time of this thread: others may use the machine, and the number of threads is the program's.
double now_s() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double product_s(at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  const at::Tensor matrix = at::ones({kSize, kSize}, at::TensorOptions(dtype));
  at::mm(matrix, matrix);  // kernels are made on first use
  double fastest = std::numeric_limits<double>::max();
  for (int i = 0; i < kRepeats; ++i) {
    const double began = now_s();
    at::mm(matrix, matrix);
    fastest = std::min(fastest, now_s() - began);
  }
  return fastest;
}

}  // namespace

std::string emulation_warning(DType params, c10::Device device) {
  if (!device.is_cpu() || computes_natively(params)) return "";
  const auto dtype = params == DType::fp16 ? at::kHalf : at::kBFloat16;
  const double factor = product_s(dtype) / product_s(at::kFloat);
  if (factor < kWorthAWarning) return "";
  return fmt::format(
      "{0} is emulated on this CPU, which has no instructions for it: a matrix product takes "
      "{1:.{2}f} times as long as in fp32 (just measured). Train in fp32 here, unless the memory "
      "that {0} saves is worth the time",
      name(params), factor, factor < 10 ? 1 : 0);
}

}  // namespace capstan::engine

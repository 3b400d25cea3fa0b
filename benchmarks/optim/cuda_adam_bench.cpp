// AdamW on a GPU with fp32 states, bf16 gradients in and a bf16 parameter copy out, beside a copy
// of as many bytes (the bound) and beside libtorch's fused AdamW, in turns.
//   cuda_adam_bench [million elements = 400] [rounds = 20]
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <limits>

#include <ATen/Functions.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/core.h>

#include "capstan/base/guard.h"
#include "capstan/optim/cuda/update.h"

namespace capstan {
namespace {

constexpr double kBytesPerElem = 2 + 8 + 8 + 8 + 2;  // gradient, master and moments, copy
constexpr c10::DeviceType kGpu = c10::kCUDA;

double milliseconds_of(const std::function<void()>& body) {
  const c10::impl::VirtualGuardImpl gpu(kGpu);
  const c10::Stream stream = gpu.getStream(gpu.getDevice());
  c10::Event begin(kGpu, c10::EventFlag::BACKEND_DEFAULT);
  c10::Event end(kGpu, c10::EventFlag::BACKEND_DEFAULT);
  begin.record(stream);
  body();
  end.record(stream);
  end.synchronize();
  return begin.elapsedTime(end);
}

int run(int argc, char** argv) {
  if (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) {
    fmt::print("cuda_adam_bench: no GPU here, nothing measured\n");
    return 0;
  }
  const std::int64_t elems = (argc > 1 ? std::strtol(argv[1], nullptr, 10) : 400) * 1'000'000;
  const int rounds = argc > 2 ? static_cast<int>(std::strtol(argv[2], nullptr, 10)) : 20;
  const auto on_gpu = [](at::ScalarType dtype) { return at::TensorOptions(dtype).device(kGpu); };
  const auto random = [&](at::ScalarType dtype) {
    return at::randn({elems}, on_gpu(at::kFloat)).mul_(0.01).to(dtype);
  };
  at::Tensor grad = random(at::kBFloat16), param = random(at::kBFloat16);
  at::Tensor master = random(at::kFloat), first = random(at::kFloat);
  at::Tensor second = random(at::kFloat).square_(), wide_grad = random(at::kFloat);
  const at::Tensor step = at::full({}, 5.0, on_gpu(at::kFloat));
  const optim::Span span = {.master = {master.mutable_data_ptr()},
                            .grad = {grad.const_data_ptr(), DType::bf16},
                            .states = {{first.mutable_data_ptr()}, {second.mutable_data_ptr()}},
                            .param = {param.mutable_data_ptr(), DType::bf16},
                            .elems = elems};
  // A copy moves each byte twice.
  const auto copied = static_cast<std::int64_t>(static_cast<double>(elems) * kBytesPerElem / 2);
  const at::Tensor from = at::randint(256, {copied}, on_gpu(at::kByte));
  const at::Tensor to = at::empty_like(from);
  struct Row {
    const char* label;
    std::function<void()> body;
    double best = std::numeric_limits<double>::infinity();
  };
  const c10::impl::VirtualGuardImpl gpu(kGpu);
  void* const stream = gpu.getStream(gpu.getDevice()).native_handle();
  Row rows[] = {{"a copy of as many bytes (bound)", [&] { to.copy_(from); }},
                {"ours, bf16 gradient and copy",
                 [&] {
                   optim::update(optim::Kind::adamw, {.weight_decay = 0.01},
                                 {.lr = 1e-4, .step = 5, .grad_factor = 0.5}, span,
                                 optim::CudaRun{.stream = stream});
                 }},
                {"libtorch fused, fp32 gradient, no copy", [&] {
                   at::_fused_adamw_({master}, {wide_grad}, {first}, {second}, {}, {step}, 1e-4,
                                     0.9, 0.999, 0.01, 1e-8, /*amsgrad=*/false, /*maximize=*/false);
                 }}};
  for (int round = 0; round < rounds; ++round) {
    for (Row& row : rows) row.best = std::min(row.best, milliseconds_of(row.body));
  }
  fmt::print("GPU AdamW, {} M elements, best of {} rounds\n", elems / 1'000'000, rounds);
  for (const Row& row : rows) {
    fmt::print("  {:<40}{:8.3f} ms {:7.2f} TB/s as if {} bytes per element moved\n", row.label,
               row.best, static_cast<double>(elems) * kBytesPerElem / row.best * 1e-9,
               kBytesPerElem);
  }
  fmt::print("  ours reaches {:.0f} % of the bound; libtorch takes {:.2f} times as long as ours\n",
             100 * rows[0].best / rows[1].best, rows[2].best / rows[1].best);
  return 0;
}

void report(const std::string& text) { fmt::print(stderr, "cuda_adam_bench: {}\n", text); }

}  // namespace
}  // namespace capstan

int main(int argc, char** argv) {
  return capstan::run_guarded<capstan::report>(capstan::run, argc, argv);
}

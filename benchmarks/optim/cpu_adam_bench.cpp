// CPU AdamW with fp32 states, bf16 gradients in and a bf16 parameter copy out, beside the same
// memory traffic without arithmetic (the bound), and beside libtorch's fused CPU AdamW. They take
// turns on the same threads over the same parts; each one's best round counts. Ratios come from the
// CPU time of the slowest thread, which equals wall time on a quiet machine and does not count the
// time in which a busy one ran something else.
//   cpu_adam_bench [threads = 2] [million elements = 48] [rounds = 30]
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <limits>
#include <mutex>
#include <string>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <fmt/core.h>

#include "benchmarks/optim/memory_mix.h"
#include "capstan/base/guard.h"
#include "capstan/optim/cpu/kernel_table.h"
#include "capstan/optim/cpu/split.h"
#include "capstan/optim/update.h"

namespace capstan::optim {
namespace {

struct Times {
  double wall = std::numeric_limits<double>::infinity();
  double cpu = std::numeric_limits<double>::infinity();
};

double now(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Runs `body` over all parts; wall time, and the mean of the threads' CPU times.
template <typename Body>
Times time_parts(WorkerPool& pool, std::int64_t elems, const Body& body) {
  std::mutex mutex;
  Times times = {.cpu = 0.0};
  const double start = now(CLOCK_MONOTONIC);
  for_parts(pool, elems, [&](Part part) {
    const double begin = now(CLOCK_THREAD_CPUTIME_ID);
    body(part);
    const double spent = now(CLOCK_THREAD_CPUTIME_ID) - begin;
    const std::lock_guard lock(mutex);
    times.cpu += spent / pool.threads();
  });
  times.wall = now(CLOCK_MONOTONIC) - start;
  return times;
}

// Everything both optimizers need: the same arrays serve ours and the bound; libtorch has its own
// fp32 gradient, which it cannot take in bf16.
struct Arrays {
  explicit Arrays(std::int64_t elems)
      : elems(elems),
        grad(at::full({elems}, 0.01, at::kBFloat16)),
        wide_grad(at::full({elems}, 0.01, at::kFloat)),
        master(at::full({elems}, 0.5, at::kFloat)),
        first(at::full({elems}, 0.0, at::kFloat)),
        second(at::full({elems}, 0.0, at::kFloat)),
        param(at::full({elems}, 0.5, at::kBFloat16)),
        step(at::full({}, 1.0, at::kFloat)) {}

  Span span() {
    return {.master = {master.mutable_data_ptr()},
            .grad = {grad.const_data_ptr(), DType::bf16},
            .states = {{first.mutable_data_ptr()}, {second.mutable_data_ptr()}},
            .param = {param.mutable_data_ptr(), DType::bf16},
            .elems = elems};
  }
  MixArrays mix() {
    return {.grad = static_cast<const std::uint16_t*>(grad.const_data_ptr()),
            .master = master.mutable_data_ptr<float>(),
            .first = first.mutable_data_ptr<float>(),
            .second = second.mutable_data_ptr<float>(),
            .param = static_cast<std::uint16_t*>(param.mutable_data_ptr())};
  }

  std::int64_t elems;
  at::Tensor grad, wide_grad, master, first, second, param, step;
};

constexpr double kLr = 1e-4;

void run_ours(Arrays& arrays, Part part, const KernelTable& kernels) {
  const AdamRule rule = {adam_constants(Kind::adamw, {.weight_decay = 0.01},
                                        {.lr = kLr, .step = 5, .grad_factor = 0.5})};
  kernels.adam(rule, arrays.span(), part);
}

void run_torch(Arrays& arrays, Part part) {
  const auto piece = [&](const at::Tensor& whole) { return whole.slice(0, part.begin, part.end); };
  at::_fused_adamw_({piece(arrays.master)}, {piece(arrays.wide_grad)}, {piece(arrays.first)},
                    {piece(arrays.second)}, {}, {arrays.step}, kLr, 0.9, 0.999, 0.01, 1e-8,
                    /*amsgrad=*/false, /*maximize=*/false);
}

void run_torch_mixed(Arrays& arrays, Part part) {
  const auto piece = [&](const at::Tensor& whole) { return whole.slice(0, part.begin, part.end); };
  piece(arrays.wide_grad).copy_(piece(arrays.grad));
  run_torch(arrays, part);
  piece(arrays.param).copy_(piece(arrays.master));
}

struct Row {
  const char* label;
  std::function<void(Part)> body;
  Times best;
};

int run(int threads, std::int64_t elems, int rounds) {
  at::set_num_threads(1);  // each of our threads calls libtorch on its own part
  WorkerPool pool(threads);
  Arrays arrays(elems);
  const MixArrays mix = arrays.mix();
  const Simd simd = best_simd();
  const KernelTable& kernels = kernels_for(simd);
  Row bound = {"memory traffic alone (bound)",
               [&](Part part) { run_memory_mix(mix, part.begin, part.end); }};
  Row ours = {"ours, bf16 gradient and copy", [&](Part part) { run_ours(arrays, part, kernels); }};
  Row torch = {"libtorch fused, fp32 gradient, no copy",
               [&](Part part) { run_torch(arrays, part); }};
  Row mixed = {"libtorch fused, with both conversions",
               [&](Part part) { run_torch_mixed(arrays, part); }};
  Row* rows[] = {&bound, &ours, &torch, &mixed};
  for (int round = 0; round < rounds; ++round) {
    for (Row* row : rows) {
      const Times times = time_parts(pool, elems, row->body);
      row->best = {std::min(row->best.wall, times.wall), std::min(row->best.cpu, times.cpu)};
    }
  }
  fmt::print("CPU AdamW, {} M elements, {} threads, {}, best of {} rounds\n", elems / 1'000'000,
             threads, name(simd), rounds);
  for (const Row* row : rows) {
    const double rate = 1e-9 * static_cast<double>(elems) / row->best.cpu;
    fmt::print("  {:<40}{:7.1f} ms wall {:7.1f} ms CPU  {:5.2f} G elements/s  {:5.1f} GB/s\n",
               row->label, row->best.wall * 1e3, row->best.cpu * 1e3, rate,
               rate * kMixBytesPerElem);
  }
  fmt::print(
      "  ours reaches {:.0f} % of the bound; libtorch takes {:.2f} times as long as ours ({:.2f} "
      "with the conversions)\n",
      100 * bound.best.cpu / ours.best.cpu, torch.best.cpu / ours.best.cpu,
      mixed.best.cpu / ours.best.cpu);
  return 0;
}

int run_with(int argc, char** argv) {
  const int threads = argc > 1 ? std::stoi(argv[1]) : 2;
  const std::int64_t million = argc > 2 ? std::stoll(argv[2]) : 48;
  const int rounds = argc > 3 ? std::stoi(argv[3]) : 30;
  return run(threads, million * 1'000'000 / 128 * 128, rounds);
}

void report(const std::string& text) { fmt::print(stderr, "cpu_adam_bench: {}\n", text); }

}  // namespace
}  // namespace capstan::optim

int main(int argc, char** argv) {
  return capstan::run_guarded<capstan::optim::report>(capstan::optim::run_with, argc, argv);
}

// Step time, TFLOP/s and memory of GPT-2 training on random tokens, one JSON line per run: the
// setting of the peers' benchmark, so that their figures can stand beside it.
//   gpt_bench [--size xl] [--batch 16] [--seq 1024] [--stage 0,1,2,3] [--steps 8] [--checkpointing]
//             [--offload optimizer|both] [--late] [--early GiB] [--ratio 0..1] [--auto GiB]
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <CLI/CLI.hpp>

#include "benchmarks/engine/bench_nccl.h"
#include "capstan/base/guard.h"
#include "capstan/comm/world.h"
#include "capstan/engine/engine.h"
#include "capstan/models/attention_choice.h"
#include "capstan/models/gpt.h"

namespace capstan {
namespace {
using Clock = std::chrono::steady_clock;
namespace profiler = torch::profiler::impl;

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

struct Arguments {
  std::string size = "xl";
  std::int64_t batch = 16;
  std::int64_t seq = 1024;
  std::vector<int> stages = {0, 1, 2, 3};
  int steps = 8;
  int warm_up = 4;
  bool checkpointing = false;
  double clip = 1.0;
  std::string offload = "none";  // what lives in host memory: optimizer, or both: parameters too
  double ratio = 1.0;
  double reserve_gib = 0;         // offload only what the device cannot hold beside this; 0: all
  std::vector<std::string> nvme;  // folders for what is offloaded, instead of host memory
  bool late = false;              // offloaded updates beside the next forward
  double early_gib = 0;           // host memory for updates during backward; 0: none
  std::string trace;              // of one step, for chrome://tracing
};

models::GptOptions model_options(const Arguments& arguments) {
  models::GptOptions options;
  options.context = std::max<std::int64_t>(1024, arguments.seq);
  options.dropout = 0;
  const auto set = [&options](std::int64_t width, std::int64_t layers, std::int64_t heads) {
    options.width = width;
    options.layers = layers;
    options.heads = heads;
  };
  if (arguments.size == "tiny") {
    set(384, 6, 6);
    options.vocab = 8192;
  } else if (arguments.size == "124m") {
    set(768, 12, 12);
  } else if (arguments.size == "4b") {
    set(3072, 32, 24);
  } else if (arguments.size == "12b") {
    set(5120, 38, 40);
  } else {
    set(1600, 48, 25);
  }
  options.recompute.enabled = arguments.checkpointing;
  options.weights_loaded_later = true;  // drawn on the device, where that takes no time
  return options;
}

models::Gpt make_model(const Arguments& arguments, c10::Device device) {
  models::Gpt model(model_options(arguments));
  model->to(device);
  const at::NoGradGuard no_grad;
  at::manual_seed(0);
  for (const auto& item : model->named_parameters()) {
    const at::Tensor values = at::empty(item.value().sizes(), item.value().options());
    if (values.dim() == 2) {
      values.normal_(0.0, 0.02);
    } else {
      values.fill_(item.key().find("ln_") != std::string::npos && item.key().ends_with("weight"));
    }
    item.value().set_data(values);
  }
  return model;
}

engine::Options engine_options(const Arguments& arguments, int stage, bool on_gpu) {
  engine::Options options;
  options.gradient_clipping = arguments.clip;
  options.optimizer =
      optim::Options{.kind = optim::Kind::adamw, .hyper = {.lr = 1e-4, .weight_decay = 0.01}};
  options.precision.params = on_gpu ? DType::bf16 : DType::fp32;
  options.shard.stage = stage;
  if (arguments.offload != "none") {
    options.store.optimizer.placement =
        arguments.nvme.empty() ? store::Placement::host : store::Placement::nvme;
    options.store.optimizer.nvme_paths = arguments.nvme;
    options.store.optimizer.ratio = arguments.ratio;
    options.store.optimizer.auto_ratio = arguments.reserve_gib > 0;
    options.store.activation_bytes = static_cast<std::int64_t>(arguments.reserve_gib * kGiB);
    options.store.optimizer.late_updates = arguments.late;
    if (arguments.early_gib > 0) {
      options.store.optimizer.early_updates = store::EarlyUpdates::always;
      options.store.optimizer.early_bytes = static_cast<std::int64_t>(arguments.early_gib * kGiB);
    }
  }
  if (arguments.offload == "both") {
    options.store.params.placement = options.store.optimizer.placement;
    options.store.params.nvme_paths = arguments.nvme;
  }
  return options;
}

c10::Device choose_device(const RankEnv& ranks) {
  const int gpus = at::hasCUDA() ? at::detail::getCUDAHooks().deviceCount() : 0;
  if (gpus == 0) return {c10::kCPU};
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(ranks.local_rank % gpus));
  c10::impl::VirtualGuardImpl(c10::kCUDA).setDevice(device);
  models::prefer_cudnn_attention();
  return device;
}

void wait_for(c10::Device device) {
  if (!device.is_cpu())
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

double resident_gib() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  return static_cast<double>(use.ru_maxrss) / (1024.0 * 1024.0);
}

void trace_step(const std::string& path, const std::function<void()>& step) {
  const std::set<profiler::ActivityType> what = {profiler::ActivityType::CPU,
                                                 profiler::ActivityType::CUDA};
  const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO);
  torch::autograd::profiler::prepareProfiler(config, what);
  torch::autograd::profiler::enableProfiler(config, what);
  step();
  torch::autograd::profiler::disableProfiler()->save(path);
}

void measure(const Arguments& arguments, int stage, comm::Group& group, c10::Device device) {
  models::Gpt model = make_model(arguments, device);
  Engine engine(model, engine_options(arguments, stage, !device.is_cpu()), {.group = &group});
  at::manual_seed(0);
  const at::Tensor ids = at::randint(model->options().vocab, {arguments.batch, arguments.seq},
                                     at::TensorOptions(at::kLong).device(device));
  at::Tensor loss;
  double grad_norm = 0;
  const auto step = [&] {
    loss = model->forward(ids, ids);
    engine.backward(loss);
    grad_norm = engine.step().grad_norm;
    wait_for(device);
  };
  for (int i = 0; i < arguments.warm_up; ++i) step();
  if (!arguments.trace.empty()) trace_step(arguments.trace, step);
  c10::DeviceAllocator* const allocator =
      device.is_cpu() ? nullptr : c10::getDeviceAllocator(device.type());
  if (allocator != nullptr) allocator->resetPeakStats(device.index());
  std::vector<double> seconds;
  for (int i = 0; i < arguments.steps; ++i) {
    const auto begin = Clock::now();
    step();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const auto tokens = static_cast<double>(arguments.batch * arguments.seq);
  double peak = 0;
  if (allocator != nullptr) {
    const auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    peak =
        static_cast<double>(allocator->getDeviceStats(device.index()).allocated_bytes[all].peak) /
        kGiB;
  }
  if (group.rank() != 0) return;
  fmt::print(
      R"({{"stage": {}, "offload": "{}", "size": "{}", "batch": {}, "seq": {}, "world": {}, )"
      R"("checkpointing": {}, "params": {}, "step_ms": {:.2f}, "tflops_per_rank": {:.1f}, )"
      R"("peak_gib": {:.2f}, "host_gib": {:.2f}, "grad_norm": {:.3f}, "loss": {:.6f}}})"
      "\n",
      stage, arguments.offload, arguments.size, arguments.batch, arguments.seq, group.size(),
      arguments.checkpointing, models::parameter_count(model->options()), median * 1e3,
      tokens * models::flops_per_token(model->options(), arguments.seq) / median / 1e12, peak,
      resident_gib(), grad_norm, loss.item<double>());
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("GPT-2 training on random tokens");
  app.add_option("--size", arguments.size)
      ->check(CLI::IsMember({"tiny", "124m", "xl", "4b", "12b"}));
  app.add_option("--batch", arguments.batch);
  app.add_option("--seq", arguments.seq);
  app.add_option("--stage", arguments.stages)->delimiter(',');
  app.add_option("--steps", arguments.steps)->check(CLI::PositiveNumber);
  app.add_option("--warm-up", arguments.warm_up)->check(CLI::NonNegativeNumber);
  app.add_option("--clip", arguments.clip, "Largest norm of the gradients; 0: no clipping");
  app.add_flag("--checkpointing", arguments.checkpointing);
  app.add_option("--offload", arguments.offload)
      ->check(CLI::IsMember({"none", "optimizer", "both"}));
  app.add_flag("--late", arguments.late);
  app.add_option("--early", arguments.early_gib, "GiB of host memory for updates during backward");
  app.add_option("--ratio", arguments.ratio)->check(CLI::Range(0.0, 1.0));
  app.add_option("--nvme", arguments.nvme, "Folders on disks for what is offloaded")
      ->delimiter(',');
  app.add_option("--auto", arguments.reserve_gib,
                 "Offload only what the device cannot hold, leaving it this many GiB");
  app.add_option("--trace", arguments.trace, "Write a timeline of one step to this file");
  CLI11_PARSE(app, argc, argv);
  const RankEnv ranks = read_rank_env(process_env());
  const c10::Device device = choose_device(ranks);
  const auto world = comm::make_world(ranks, {}, device.is_cpu() ? nullptr : bench_nccl());
  for (const int stage : arguments.stages) {
    measure(arguments, stage, world->group(), device);
    if (!device.is_cpu()) c10::getDeviceAllocator(device.type())->emptyCache();
  }
  world->close();
  return 0;
}

void report(const std::string& text) { fmt::print(stderr, "gpt_bench: {}\n", text); }

}  // namespace
}  // namespace capstan

int main(int argc, char** argv) {
  return capstan::run_guarded<capstan::report>(capstan::run, argc, argv);
}

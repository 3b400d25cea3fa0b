#include "capstan/cli/train/setup.h"

#include <cstdlib>

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "capstan/base/error.h"

namespace capstan::cli::train {
namespace {

int count_gpus() { return at::hasCUDA() ? at::detail::getCUDAHooks().deviceCount() : 0; }

}  // namespace

RankEnv training_ranks(const Arguments& arguments, const RankEnv& started) {
  if (!arguments.no_communication) return started;
  RankEnv alone = started;
  alone.rank = 0;
  alone.world_size = 1;
  return alone;
}

void compute_deterministically() {
  // cuBLAS reads it when it starts; without it streams share a workspace and sums vary.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

bool trains_on_gpus(const std::string& wanted) { return wanted != "cpu" && count_gpus() > 0; }

c10::Device choose_device(const std::string& wanted, const RankEnv& ranks) {
  const int gpus = count_gpus();
  if (wanted == "cuda" && gpus == 0) {
    throw ConfigError({.what = "there is no GPU that libtorch can use",
                       .where = "--device cuda",
                       .fix = "see what is missing with: capstan report"});
  }
  if (wanted == "cpu" || gpus == 0) return c10::Device(c10::kCPU);
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(ranks.local_rank % gpus));
  c10::impl::VirtualGuardImpl(c10::kCUDA).setDevice(device);
  return device;
}

}  // namespace capstan::cli::train

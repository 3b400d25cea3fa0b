#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <unistd.h>

#include "capstan/base/text.h"
#include "capstan/cli/report/build_facts.h"
#include "capstan/cli/report/machine_rows.h"
#include "capstan/cli/report/system_files.h"

namespace capstan::cli {
namespace {

Row cores_row() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int usable = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  const long present = ::sysconf(_SC_NPROCESSORS_ONLN);
  Row row{.section = "cpu",
          .name = "cores",
          .value = fmt::format("{}", usable),
          .number = usable,
          .unit = "cores"};
  if (usable < present) row.value += fmt::format(" of the machine's {}", present);
  // cgroup v2: "quota period" in microseconds, or "max period".
  const std::vector<std::string> quota = split(read_line("/sys/fs/cgroup/cpu.max"), ' ');
  if (quota.size() == 2 && quota[0] != "max") {
    const double share = std::stod(quota[0]) / std::max(1.0, std::stod(quota[1]));
    row.value += fmt::format(", limited to the time of {:.1f} by this container", share);
  }
  return row;
}

std::string model_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("model name")) continue;
    return std::string(trim(line.substr(line.find(':') + 1)));
  }
  return "unknown";
}

// What the kernels look at when they choose a form at run time; nothing here was compiled in.
Row simd_row() {
  __builtin_cpu_init();
  std::vector<std::string_view> parts;
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  const bool avx512 =
      __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  if (avx2) parts.emplace_back("avx2+fma");
  if (__builtin_cpu_supports("f16c") != 0) parts.emplace_back("f16c");
  if (avx512) parts.emplace_back("avx512 f+bw+dq+vl");
  if (__builtin_cpu_supports("avx512bf16") != 0) parts.emplace_back("avx512_bf16");
  const std::string_view level = avx512 ? "avx512" : avx2 ? "avx2" : "scalar";
  Row row{.section = "cpu", .name = "SIMD level", .value = std::string(level)};
  if (!parts.empty()) row.value += fmt::format(" ({})", fmt::join(parts, ", "));
  if (!avx2) {
    row.state = RowState::missing;
    row.fix = "CPU optimizers use the scalar form; a processor with AVX2 is several times faster";
  }
  return row;
}

Row numa_row() {
  std::vector<std::string> nodes;
  std::error_code error;
  const std::filesystem::path folder = "/sys/devices/system/node";
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("node") || name.size() < 5 || std::isdigit(name[4]) == 0) continue;
    nodes.push_back(fmt::format("{}: cpus {}", name, read_line(entry.path() / "cpulist")));
  }
  std::ranges::sort(nodes);
  Row row{.section = "cpu", .name = "NUMA nodes", .unit = "nodes"};
  if (nodes.empty()) {
    row.value = "1 (this kernel reports none)";
    row.number = 1;
    return row;
  }
  row.number = static_cast<double>(nodes.size());
  row.value = fmt::format("{} ({})", nodes.size(), fmt::join(nodes, "; "));
  return row;
}

}  // namespace

std::vector<Row> cpu_rows() {
  return {{.section = "cpu", .name = "model", .value = model_name()},
          cores_row(),
          simd_row(),
          numa_row()};
}

std::vector<Row> build_rows() {
  const BuildFacts facts = build_facts();
  std::string flavour(facts.build_type);
  if (!facts.sanitizers.empty()) flavour += fmt::format(", sanitizers {}", facts.sanitizers);
  std::vector<Row> rows = {
      {.section = "build", .name = "capstan", .value = std::string(facts.version)},
      {.section = "build",
       .name = "compiler",
       .value = fmt::format("{}, {}", facts.compiler, flavour)},
  };
  const auto part = [&](std::string name, std::string_view value, std::string fix) {
    const bool there = !value.empty();
    rows.push_back({.section = "build",
                    .name = std::move(name),
                    .state = there ? RowState::ok : RowState::missing,
                    .value = there ? std::string(value) : "not in this build",
                    .fix = there ? "" : std::move(fix)});
  };
  const std::string cuda = facts.cuda_compiler.empty()
                               ? ""
                               : fmt::format("nvcc {}, for GPU generation {}", facts.cuda_compiler,
                                             facts.cuda_architectures);
  part("CUDA kernels", cuda,
       "only for GPUs: install a CUDA 13 compiler, or make build CUDA=wheels");
  part("NCCL backend", facts.nccl ? "in libtorch" : "",
       "only for GPUs: use a torch wheel with CUDA, then make build");
  part("MPI backend", facts.mpi_standard.empty() ? "" : fmt::format("MPI {}", facts.mpi_standard),
       "apt-get install libopenmpi-dev openmpi-bin, then make build");
  part("io_uring", facts.uring ? "liburing" : "", "apt-get install liburing-dev, then make build");
  return rows;
}

}  // namespace capstan::cli

// capstan-engine facts: what the loaded libtorch says of itself, as report rows in JSON.
#include <string>
#include <vector>

#include <dlfcn.h>

#include <ATen/Version.h>
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "capstan/base/text.h"
#include "capstan/cli/command.h"
#include "capstan/cli/report/build_facts.h"
#include "capstan/cli/report/rows.h"
#include "capstan/json/writer.h"

namespace capstan::cli {
namespace {

// "TORCH_VERSION=2.11.0, " among libtorch's build settings: the library's own word, not a header's.
std::string loaded_torch_version() {
  const std::string config = at::show_config();
  constexpr std::string_view kKey = "TORCH_VERSION=";
  const std::size_t at = config.find(kKey);
  if (at == std::string::npos) return {};
  const std::size_t begin = at + kKey.size();
  return config.substr(begin, config.find_first_of(", \n", begin) - begin);
}

Row torch_row() {
  const BuildFacts facts = build_facts();
  const std::string loaded = loaded_torch_version();
  Row row{.section = "libraries",
          .name = "libtorch",
          .value = fmt::format("{} in {}", facts.torch_version, facts.torch_folder),
          .basic = true};
  // The wheel's name may carry a suffix such as +cu130 that the library does not.
  if (!facts.torch_version.starts_with(loaded)) {
    row.state = RowState::failed;
    row.value = fmt::format("built against {}, but {} is loaded", facts.torch_version, loaded);
    row.fix = "build again: make build";
  }
  return row;
}

Row cuda_row() {
  const BuildFacts facts = build_facts();
  if (facts.torch_cuda.empty()) {
    return {.section = "libraries",
            .name = "CUDA",
            .state = RowState::missing,
            .value = "this libtorch has no CUDA",
            .fix = "only for GPUs: use a torch wheel with CUDA"};
  }
  return {.section = "libraries",
          .name = "CUDA",
          .value = fmt::format("{} (libtorch's)", facts.torch_cuda)};
}

Row nccl_version_row() {
  Row row{.section = "libraries", .name = "NCCL", .state = RowState::missing};
  const std::string beside_torch =
      fmt::format("{}/../nvidia/nccl/lib/libnccl.so.2", build_facts().torch_folder);
  // Where libtorch's CUDA part is loaded, so is its NCCL; else the one that it would load.
  void* library = ::dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) library = ::dlopen(beside_torch.c_str(), RTLD_LAZY | RTLD_LOCAL);
  auto* get_version = library == nullptr
                          ? nullptr
                          : reinterpret_cast<int (*)(int*)>(::dlsym(library, "ncclGetVersion"));
  int version = 0;
  if (get_version == nullptr || get_version(&version) != 0) {
    row.value = "not found";
    row.fix = "only for GPUs: use a torch wheel with CUDA";
    return row;
  }
  row.state = RowState::ok;
  row.value = fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  return row;
}

std::vector<Row> fact_rows() {
  return {
      torch_row(),
      {.section = "libraries", .name = "libtorch's CPU kernels", .value = at::get_cpu_capability()},
      cuda_row(),
      nccl_version_row()};
}

}  // namespace

void add_facts_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("facts", "Libraries, as rows of the report in JSON");
  command->callback([&exit_code] {
    fmt::print("{}\n", json::write(to_json(fact_rows())));
    exit_code = 0;
  });
}

}  // namespace capstan::cli

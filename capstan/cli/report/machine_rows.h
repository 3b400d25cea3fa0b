// Rows about this machine that need no libtorch: build, processor, memory and limits, GPUs.
#pragma once

#include <vector>

#include "capstan/cli/report/rows.h"

namespace capstan::cli {

[[nodiscard]] std::vector<Row> build_rows();
[[nodiscard]] std::vector<Row> cpu_rows();
[[nodiscard]] std::vector<Row> memory_rows();
// Asks the NVIDIA driver itself (libcuda), so that no toolkit and no libtorch is needed.
[[nodiscard]] std::vector<Row> gpu_rows();

}  // namespace capstan::cli

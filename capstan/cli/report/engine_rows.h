// Rows that only capstan-engine can find out: libtorch, and which backends really start. Each is
// tried in a process of its own, so that a crash or a hang is a row and not the end of the report.
#pragma once

#include <vector>

#include "capstan/cli/report/rows.h"

namespace capstan::cli {

// `gpu_count`: NCCL is tried where there is a device.
[[nodiscard]] std::vector<Row> engine_rows(int gpu_count);

}  // namespace capstan::cli

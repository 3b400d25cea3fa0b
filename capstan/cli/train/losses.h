// The losses that a metrics file holds, for the curve of a run that goes on.
#pragma once

#include <filesystem>

#include "capstan/cli/train/loss_curve.h"

namespace capstan::cli::train {

// Of the steps up to `last`; empty where there is no file. Of a step that was taken again, after a
// kill, the last time counts; lines that were cut are left out.
void read_losses(const std::filesystem::path& path, std::int64_t last, Curve& curve);

}  // namespace capstan::cli::train

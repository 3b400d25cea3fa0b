// The files and folders that a training run is given, tried before it starts; without libtorch.
#pragma once

#include "capstan/cli/train/arguments.h"

namespace capstan::cli::train {

// What is read must be there, and what is written at the end must be writable now. Throws IoError.
void check_places(const Arguments& arguments);

}  // namespace capstan::cli::train

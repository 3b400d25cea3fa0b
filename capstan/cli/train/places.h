// The files and folders that a training run is given, tried before it starts; without libtorch.
#pragma once

#include "capstan/cli/train/arguments.h"

namespace capstan::cli::train {

// What is read must be there, what is written at the end must be writable now, and the folder to
// save to is nobody else's, nor another run's. Throws IoError and ConfigError.
void check_places(const Arguments& arguments);

}  // namespace capstan::cli::train

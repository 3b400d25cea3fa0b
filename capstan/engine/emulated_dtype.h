// What 16-bit parameters cost on a CPU that has no instructions for them.
#pragma once

#include <string>

#include <c10/core/Device.h>

#include "capstan/base/dtype.h"

namespace capstan::engine {

// A warning with the factor by which matrix products are slower than in fp32, measured in some
// milliseconds; empty where they are not.
std::string emulation_warning(DType params, c10::Device device);

}  // namespace capstan::engine

// What the processor of this machine can execute.
#pragma once

#include "capstan/optim/cpu/simd.h"

namespace capstan::optim {

bool processor_has(Simd level);

}  // namespace capstan::optim

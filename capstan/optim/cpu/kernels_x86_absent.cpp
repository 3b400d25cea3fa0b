// For processors other than x86-64: only the scalar kernels exist.
#include "capstan/optim/cpu/cpu_features.h"
#include "capstan/optim/cpu/kernel_table.h"

namespace capstan::optim {

bool processor_has(Simd level) { return level == Simd::scalar; }

const KernelTable* avx2_kernels() { return nullptr; }
const KernelTable* avx512_kernels() { return nullptr; }

}  // namespace capstan::optim

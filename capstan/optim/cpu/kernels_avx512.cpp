#include "capstan/optim/cpu/make_kernel_table.h"
#include "capstan/optim/cpu/vec_avx512.h"
#include "capstan/optim/cpu/vec_scalar.h"

namespace capstan::optim {

const KernelTable* avx512_kernels() {
  static constexpr KernelTable kTable = make_kernel_table<Avx512Vec, ScalarVec<Simd::avx512>>();
  return &kTable;
}

}  // namespace capstan::optim

#include "capstan/optim/cpu/make_kernel_table.h"
#include "capstan/optim/cpu/vec_avx2.h"
#include "capstan/optim/cpu/vec_scalar.h"

namespace capstan::optim {

const KernelTable* avx2_kernels() {
  static constexpr KernelTable kTable = make_kernel_table<Avx2Vec, ScalarVec<Simd::avx2>>();
  return &kTable;
}

}  // namespace capstan::optim

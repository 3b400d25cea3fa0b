#include "capstan/optim/cpu/make_kernel_table.h"
#include "capstan/optim/cpu/vec_scalar.h"

namespace capstan::optim {

const KernelTable* scalar_kernels() {
  using Vec = ScalarVec<Simd::scalar>;
  static constexpr KernelTable kTable = make_kernel_table<Vec, Vec>();
  return &kTable;
}

}  // namespace capstan::optim

#include "capstan/optim/column_ops.h"

#include "capstan/optim/cpu/kernel_table.h"
#include "capstan/optim/cpu/split.h"

namespace capstan::optim {

double sum_squares(ConstColumn column, std::int64_t elems, const CpuRun& run) {
  const KernelTable& kernels = kernels_for(run.simd);
  return sum_blocks<double>(run.pool, elems,
                            [&](Part part) { return kernels.sum_squares(column, part); });
}

void convert(Column to, ConstColumn from, std::int64_t elems, const CpuRun& run) {
  const KernelTable& kernels = kernels_for(run.simd);
  for_parts(run.pool, elems, [&](Part part) { kernels.convert(to, from, part); });
}

void accumulate(Column to, ConstColumn from, std::int64_t elems, const CpuRun& run) {
  const KernelTable& kernels = kernels_for(run.simd);
  for_parts(run.pool, elems, [&](Part part) { kernels.accumulate(to, from, part); });
}

}  // namespace capstan::optim

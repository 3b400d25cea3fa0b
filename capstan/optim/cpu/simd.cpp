#include "capstan/optim/cpu/simd.h"

#include <string>

#include "capstan/base/error.h"
#include "capstan/optim/cpu/cpu_features.h"
#include "capstan/optim/cpu/kernel_table.h"

namespace capstan::optim {
namespace {

const KernelTable* table_of(Simd level) {
  if (!processor_has(level)) return nullptr;
  switch (level) {
    case Simd::avx512:
      return avx512_kernels();
    case Simd::avx2:
      return avx2_kernels();
    case Simd::scalar:
      break;
  }
  return scalar_kernels();
}

}  // namespace

bool can_run(Simd level) { return table_of(level) != nullptr; }

Simd best_simd() {
  for (const Simd level : {Simd::avx512, Simd::avx2}) {
    if (can_run(level)) return level;
  }
  return Simd::scalar;
}

const KernelTable& kernels_for(Simd level) {
  const KernelTable* table = table_of(level);
  if (table != nullptr) return *table;
  throw ConfigError(
      {.what = "this machine cannot run the " + std::string(name(level)) + " kernels",
       .where = "optim::Simd",
       .fix = "use " + std::string(name(best_simd())) + " or leave it to best_simd()"});
}

}  // namespace capstan::optim

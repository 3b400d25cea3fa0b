#include "capstan/optim/cpu/cpu_features.h"

namespace capstan::optim {

bool processor_has(Simd level) {
  // The builtins also check that the operating system saves the wide registers.
  switch (level) {
    case Simd::avx512:
      return __builtin_cpu_supports("avx512f") != 0 && processor_has(Simd::avx2);
    case Simd::avx2:
      return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
             __builtin_cpu_supports("f16c") != 0;
    case Simd::scalar:
      break;
  }
  return true;
}

}  // namespace capstan::optim

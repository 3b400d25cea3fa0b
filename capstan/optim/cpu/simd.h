// Which instruction set the CPU kernels use. A value: tests and users can force a lower one.
// Every level gives the same bits, so the choice is only about speed.
#pragma once

#include <string_view>

namespace capstan::optim {

enum class Simd { scalar, avx2, avx512 };

constexpr std::string_view name(Simd level) {
  switch (level) {
    case Simd::avx2:
      return "avx2";
    case Simd::avx512:
      return "avx512";
    case Simd::scalar:
      break;
  }
  return "scalar";
}

// The best level that this machine has and this build contains.
Simd best_simd();

// Whether kernels for `level` can run here.
bool can_run(Simd level);

}  // namespace capstan::optim

#include <immintrin.h>

#include "capstan/comm/rank_sum_inl.h"

namespace capstan::comm {
namespace {

struct Avx2Half {
  static void widen(const Fp16* from, float* to, std::int64_t n) {
    std::int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
      const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
      _mm256_storeu_ps(to + i, _mm256_cvtph_ps(bits));
    }
    for (; i < n; ++i) to[i] = _cvtsh_ss(from[i].bits);
  }
  static void narrow(const float* from, Fp16* to, std::int64_t n) {
    std::int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
      const __m128i bits = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), bits);
    }
    for (; i < n; ++i) to[i] = {_cvtss_sh(from[i], _MM_FROUND_TO_NEAREST_INT)};
  }
};

}  // namespace

SumLoop find_sum_loop_avx2(at::ScalarType out, at::ScalarType piece) {
  return find_loop<Avx2Half>(out, piece);
}

}  // namespace capstan::comm

// Eight floats at a time, with AVX2, FMA and F16C. Only for sources compiled with these.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace capstan::optim {

struct Avx2Vec {
  static constexpr int kWidth = 8;
  __m256 value;

  // Explicit, because GCC forgets it on some paths, and dirty upper halves slow down every SSE
  // instruction of this thread from then on (measured: scalar code seven times slower).
  static void leave() {
    _mm_sfence();
    _mm256_zeroupper();
  }

  static Avx2Vec splat(float x) { return {_mm256_set1_ps(x)}; }
  static Avx2Vec load(const float* at) { return {_mm256_loadu_ps(at)}; }
  static Avx2Vec load_bf16(const std::uint16_t* at) {
    const __m256i wide = _mm256_cvtepu16_epi32(load_halves(at));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
  }
  static Avx2Vec load_fp16(const std::uint16_t* at) { return {_mm256_cvtph_ps(load_halves(at))}; }

  void store(float* at) const { _mm256_storeu_ps(at, value); }
  void store_bf16(std::uint16_t* at) const { _mm_storeu_si128(halves(at), to_bf16()); }
  void store_fp16(std::uint16_t* at) const { _mm_storeu_si128(halves(at), to_fp16()); }
  // Past the caches; `at` is a multiple of the vector's bytes. leave() makes them visible.
  void stream(float* at) const { _mm256_stream_ps(at, value); }
  void stream_bf16(std::uint16_t* at) const { _mm_stream_si128(halves(at), to_bf16()); }
  void stream_fp16(std::uint16_t* at) const { _mm_stream_si128(halves(at), to_fp16()); }

  friend Avx2Vec operator+(Avx2Vec a, Avx2Vec b) { return {_mm256_add_ps(a.value, b.value)}; }
  friend Avx2Vec operator-(Avx2Vec a, Avx2Vec b) { return {_mm256_sub_ps(a.value, b.value)}; }
  friend Avx2Vec operator*(Avx2Vec a, Avx2Vec b) { return {_mm256_mul_ps(a.value, b.value)}; }
  friend Avx2Vec operator/(Avx2Vec a, Avx2Vec b) { return {_mm256_div_ps(a.value, b.value)}; }
  friend Avx2Vec fma(Avx2Vec a, Avx2Vec b, Avx2Vec c) {
    return {_mm256_fmadd_ps(a.value, b.value, c.value)};
  }
  friend Avx2Vec sqrt(Avx2Vec a) { return {_mm256_sqrt_ps(a.value)}; }
  friend Avx2Vec sign(Avx2Vec a) {
    const __m256 zero = _mm256_setzero_ps();
    const __m256 one = _mm256_set1_ps(1.0f);
    const __m256 above = _mm256_and_ps(_mm256_cmp_ps(a.value, zero, _CMP_GT_OQ), one);
    const __m256 below = _mm256_and_ps(_mm256_cmp_ps(a.value, zero, _CMP_LT_OQ), one);
    return {_mm256_sub_ps(above, below)};
  }

  struct SquareSums {
    __m256d low = _mm256_setzero_pd();
    __m256d high = _mm256_setzero_pd();

    void add(Avx2Vec x) {
      const __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(x.value));
      const __m256d b = _mm256_cvtps_pd(_mm256_extractf128_ps(x.value, 1));
      low = _mm256_fmadd_pd(a, a, low);
      high = _mm256_fmadd_pd(b, b, high);
    }
    void store(double* at) const {
      _mm256_storeu_pd(at, low);
      _mm256_storeu_pd(at + 4, high);
    }
  };

 private:
  __m128i to_bf16() const {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    const __m256i wide = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), is_nan);
    // packus works within each 128-bit half: quarters 0 and 2 hold the result.
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(wide, wide), 0x08);
    return _mm256_castsi256_si128(packed);
  }
  __m128i to_fp16() const { return _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT); }

  static __m128i load_halves(const std::uint16_t* at) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  }
  static __m128i* halves(std::uint16_t* at) { return reinterpret_cast<__m128i*>(at); }
};

}  // namespace capstan::optim

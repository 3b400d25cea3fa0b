// Sixteen floats at a time, with AVX-512 F. Only for sources compiled with it. The bf16
// instructions of newer machines are not used: they flush denormals, so their bits would differ.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace capstan::optim {

struct Avx512Vec {
  static constexpr int kWidth = 16;
  __m512 value;

  static void leave() {  // see Avx2Vec
    _mm_sfence();
    _mm256_zeroupper();
  }

  static Avx512Vec splat(float x) { return {_mm512_set1_ps(x)}; }
  static Avx512Vec load(const float* at) { return {_mm512_loadu_ps(at)}; }
  static Avx512Vec load_bf16(const std::uint16_t* at) {
    const __m512i wide = _mm512_cvtepu16_epi32(load_halves(at));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
  }
  static Avx512Vec load_fp16(const std::uint16_t* at) { return {_mm512_cvtph_ps(load_halves(at))}; }

  void store(float* at) const { _mm512_storeu_ps(at, value); }
  void store_bf16(std::uint16_t* at) const { _mm256_storeu_si256(halves(at), to_bf16()); }
  void store_fp16(std::uint16_t* at) const { _mm256_storeu_si256(halves(at), to_fp16()); }
  void stream(float* at) const { _mm512_stream_ps(at, value); }
  void stream_bf16(std::uint16_t* at) const { _mm256_stream_si256(halves(at), to_bf16()); }
  void stream_fp16(std::uint16_t* at) const { _mm256_stream_si256(halves(at), to_fp16()); }

  friend Avx512Vec operator+(Avx512Vec a, Avx512Vec b) { return {_mm512_add_ps(a.value, b.value)}; }
  friend Avx512Vec operator-(Avx512Vec a, Avx512Vec b) { return {_mm512_sub_ps(a.value, b.value)}; }
  friend Avx512Vec operator*(Avx512Vec a, Avx512Vec b) { return {_mm512_mul_ps(a.value, b.value)}; }
  friend Avx512Vec operator/(Avx512Vec a, Avx512Vec b) { return {_mm512_div_ps(a.value, b.value)}; }
  friend Avx512Vec fma(Avx512Vec a, Avx512Vec b, Avx512Vec c) {
    return {_mm512_fmadd_ps(a.value, b.value, c.value)};
  }
  friend Avx512Vec sqrt(Avx512Vec a) { return {_mm512_sqrt_ps(a.value)}; }
  friend Avx512Vec sign(Avx512Vec a) {
    const __m512 zero = _mm512_setzero_ps();
    const __m512 one = _mm512_set1_ps(1.0f);
    const __mmask16 above = _mm512_cmp_ps_mask(a.value, zero, _CMP_GT_OQ);
    const __mmask16 below = _mm512_cmp_ps_mask(a.value, zero, _CMP_LT_OQ);
    return {_mm512_sub_ps(_mm512_maskz_mov_ps(above, one), _mm512_maskz_mov_ps(below, one))};
  }

  struct SquareSums {
    __m512d low = _mm512_setzero_pd();
    __m512d high = _mm512_setzero_pd();

    void add(Avx512Vec x) {
      const __m512i bits = _mm512_castps_si512(x.value);
      const __m512d a = _mm512_cvtps_pd(_mm512_castps512_ps256(x.value));
      const __m512d b = _mm512_cvtps_pd(_mm256_castsi256_ps(_mm512_extracti64x4_epi64(bits, 1)));
      low = _mm512_fmadd_pd(a, a, low);
      high = _mm512_fmadd_pd(b, b, high);
    }
    void store(double* at) const {
      _mm512_storeu_pd(at, low);
      _mm512_storeu_pd(at + 8, high);
    }
  };

 private:
  __m256i to_bf16() const {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, bias), 16);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    const __m512i wide = _mm512_mask_mov_epi32(rounded, is_nan, _mm512_set1_epi32(0x7fc0));
    return _mm512_cvtepi32_epi16(wide);
  }
  __m256i to_fp16() const { return _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT); }

  static __m256i load_halves(const std::uint16_t* at) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  }
  static __m256i* halves(std::uint16_t* at) { return reinterpret_cast<__m256i*>(at); }
};

}  // namespace capstan::optim

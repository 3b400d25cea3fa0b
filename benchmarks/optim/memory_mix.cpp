#include "benchmarks/optim/memory_mix.h"

#include <emmintrin.h>

#include <bit>

namespace capstan::optim {
namespace {

constexpr std::int64_t kRowElems = 32;     // one cache line of 16-bit elements
constexpr std::int64_t kAheadElems = 256;  // prefetch distance; 128 to 384 measure alike

// With every trick that lets plain copying go faster (prefetch, and a copy written past the
// caches), compiled for each vector width: the kernel has to come near this, not near a slow loop.
__attribute__((target_clones("avx512f", "avx2", "default"))) void mix(const MixArrays& arrays,
                                                                      std::int64_t begin,
                                                                      std::int64_t end) {
  const std::uint16_t* __restrict grad = arrays.grad;
  float* __restrict master = arrays.master;
  float* __restrict first = arrays.first;
  float* __restrict second = arrays.second;
  for (std::int64_t row = begin; row + kRowElems <= end; row += kRowElems) {
    for (std::int64_t line = 0; line < kRowElems; line += 16) {
      __builtin_prefetch(master + row + kAheadElems + line, 1);
      __builtin_prefetch(first + row + kAheadElems + line, 1);
      __builtin_prefetch(second + row + kAheadElems + line, 1);
    }
    __builtin_prefetch(grad + row + kAheadElems);
    alignas(64) std::uint16_t copy[kRowElems];
    for (std::int64_t k = 0; k < kRowElems; ++k) {
      const float g = std::bit_cast<float>(static_cast<std::uint32_t>(grad[row + k]) << 16);
      const float p = master[row + k] + g;
      master[row + k] = p;
      first[row + k] += g;
      second[row + k] += g;
      copy[k] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(p) >> 16);
    }
    auto* to = reinterpret_cast<__m128i*>(arrays.param + row);
    const auto* from = reinterpret_cast<const __m128i*>(copy);
    for (int k = 0; k < 4; ++k) _mm_stream_si128(to + k, _mm_load_si128(from + k));
  }
  _mm_sfence();
}

}  // namespace

void run_memory_mix(const MixArrays& arrays, std::int64_t begin, std::int64_t end) {
  mix(arrays, begin, end);
}

}  // namespace capstan::optim

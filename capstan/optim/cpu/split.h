// How a span is divided among the threads of a pool.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "capstan/optim/cpu/kernel_table.h"
#include "capstan/optim/cpu/worker_pool.h"

namespace capstan::optim {

// Waking a thread costs some ten microseconds; this many elements of Adam take about as long.
inline constexpr std::int64_t kMinElemsPerThread = 32768;
// So that a thread that is held up delays the others by little.
inline constexpr std::int64_t kPartsPerThread = 4;
// Parts begin on multiples of this, so that no two threads write the same cache line of a 16-bit
// column that starts on one.
inline constexpr std::int64_t kPartAlignElems = 64;

// Calls body(Part) for parts that cover [0, elems) once.
template <typename Body>
void for_parts(WorkerPool& pool, std::int64_t elems, const Body& body) {
  const std::int64_t useful = std::max<std::int64_t>(1, elems / kMinElemsPerThread);
  const int parts =
      static_cast<int>(std::min<std::int64_t>(kPartsPerThread * pool.threads(), useful));
  const std::int64_t lines = (elems + kPartAlignElems - 1) / kPartAlignElems;
  const auto boundary = [&](int part) {
    return std::min(elems, lines * part / parts * kPartAlignElems);
  };
  pool.run(parts, [&](int part) { body(Part{boundary(part), boundary(part + 1)}); });
}

// The sum of body(Part) over the blocks of [0, elems), added in order of the blocks. `Sum` has +=.
template <typename Sum, typename Body>
Sum sum_blocks(WorkerPool& pool, std::int64_t elems, const Body& body) {
  constexpr std::int64_t kWaveBlocks = 256;  // partial sums on the stack instead of the heap
  std::array<Sum, kWaveBlocks> partial;
  const std::int64_t blocks = (elems + kSumBlockElems - 1) / kSumBlockElems;
  Sum total{};
  for (std::int64_t first = 0; first < blocks; first += kWaveBlocks) {
    const std::int64_t count = std::min(kWaveBlocks, blocks - first);
    for_parts(pool, count * kSumBlockElems, [&](Part wave) {
      // A block belongs to the part in which it begins.
      const auto first_at = [](std::int64_t elem) {
        return (elem + kSumBlockElems - 1) / kSumBlockElems;
      };
      for (std::int64_t block = first_at(wave.begin); block < first_at(wave.end); ++block) {
        const std::int64_t begin = (first + block) * kSumBlockElems;
        partial[static_cast<std::size_t>(block)] =
            body(Part{begin, std::min(elems, begin + kSumBlockElems)});
      }
    });
    for (std::int64_t block = 0; block < count; ++block) {
      total += partial[static_cast<std::size_t>(block)];
    }
  }
  return total;
}

}  // namespace capstan::optim

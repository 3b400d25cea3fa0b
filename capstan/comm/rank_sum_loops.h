// The instruction sets that rank_sum is compiled for.
#pragma once

#include <cstdint>
#include <span>

#include <c10/core/ScalarType.h>

namespace capstan::comm {

using SumLoop = void (*)(void* out, std::span<const void* const> pieces, std::int64_t elems,
                         bool accumulate);

// Null when the two dtypes cannot be combined.
SumLoop find_sum_loop_portable(at::ScalarType out, at::ScalarType piece);
// Call only on a processor with AVX2 and F16C. The same bits as the portable one.
SumLoop find_sum_loop_avx2(at::ScalarType out, at::ScalarType piece);

}  // namespace capstan::comm

// Passes over gradients around the optimizer: their sum of squares, conversion, accumulation.
#pragma once

#include <cstdint>

#include "capstan/optim/span.h"
#include "capstan/optim/update.h"

namespace capstan::optim {

// Sum of squares in fp64, added in an order that depends only on `elems`, so the same bits for any
// thread count and instruction set. Finite exactly when every element is finite: squares of fp32
// values cannot overflow fp64, so this one pass is the overflow check as well.
double sum_squares(ConstColumn column, std::int64_t elems, const CpuRun& run);

// to = from, rounded to nearest even.
void convert(Column to, ConstColumn from, std::int64_t elems, const CpuRun& run);

// to += from: added in fp32, rounded to the dtype of `to`.
void accumulate(Column to, ConstColumn from, std::int64_t elems, const CpuRun& run);

}  // namespace capstan::optim

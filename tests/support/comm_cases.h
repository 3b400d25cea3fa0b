// What every group must get right, whatever its backend: one function per collective, each throws
// std::runtime_error with the first difference.
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

#include "capstan/comm/group.h"

namespace capstan {

inline constexpr at::ScalarType kCommDtypes[] = {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble,
                                                 at::kInt,   at::kLong, at::kByte};

// n values that differ from rank to rank.
at::Tensor numbers_of_rank(std::int64_t n, int rank, at::ScalarType dtype);
// The definition of a reduction: add in rank order in fp32 (or the wide type), round once.
at::Tensor sum_over_ranks(int ranks, std::int64_t n, at::ScalarType dtype, at::ScalarType out);

// Runs every collective over every dtype with parts of n elements on `device`.
void check_collectives(comm::Group& group, std::int64_t n, at::Device device = at::kCPU);

}  // namespace capstan

// What tests of split layers share: whole tensors that all ranks agree on, and comparisons.
#pragma once

#include <algorithm>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "capstan/tensor_parallel/region.h"
#include "capstan/tensor_parallel/take.h"
#include "tests/support/run_ranks.h"

namespace capstan::test {

inline constexpr std::int64_t kTokens = 12;  // 1, 2, 3 and 4 divide it

// The same on every rank; ranks are threads, so it takes a generator of its own.
inline at::Tensor whole_tensor(at::IntArrayRef shape, std::uint64_t seed) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::empty(shape).normal_(0, 1, generator);
}

inline at::Tensor leaf(const at::Tensor& values) { return values.clone().requires_grad_(); }

inline at::Tensor part_of(const at::Tensor& whole, const tensor_parallel::WeightCut& cut) {
  return tensor_parallel::take(whole, cut);
}

// Sums of some dozen products of numbers near one, in another order: some units in the last place
// of the largest.
inline void expect_near(const at::Tensor& mine, const at::Tensor& expected,
                        const std::string& what) {
  ASSERT_TRUE(mine.defined()) << what;
  ASSERT_EQ(mine.sizes(), expected.sizes()) << what;
  ASSERT_EQ(mine.scalar_type(), expected.scalar_type()) << what;
  const double unit = mine.scalar_type() == at::kDouble ? 1e-12 : 2e-6;
  const double largest = std::max(1.0, expected.abs().max().item<double>());
  EXPECT_LE((mine - expected).abs().max().item<double>(), unit * largest) << what;
}

// What every rank computes, by rank.
using PerRank = std::vector<std::vector<at::Tensor>>;
inline PerRank on_each(int ranks,
                       const std::function<std::vector<at::Tensor>(comm::Group&)>& compute) {
  PerRank results(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](comm::Group& group) {
    results[static_cast<std::size_t>(group.rank())] = compute(group);
  });
  return results;
}

inline void expect_same_bits(const PerRank& a, const PerRank& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t rank = 0; rank < a.size(); ++rank) {
    ASSERT_EQ(a[rank].size(), b[rank].size());
    for (std::size_t i = 0; i < a[rank].size(); ++i) {
      EXPECT_TRUE(at::equal(a[rank][i], b[rank][i])) << "rank " << rank << ", tensor " << i;
    }
  }
}

}  // namespace capstan::test

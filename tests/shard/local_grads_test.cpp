#include "capstan/shard/local_grads.h"

#include <limits>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "capstan/store/ledger.h"

namespace capstan::shard {
namespace {

using store::MemoryKind;

// A unit of a small and a large parameter, padded for three ranks.
struct GradsOfUnit {
  explicit GradsOfUnit(DType dtype, DType accum)
      : plan(make_plan({{.name = "a", .sizes = {5}, .dtype = dtype},
                        {.name = "b", .sizes = {100, 100}, .dtype = dtype}},
                       {{.name = "u", .params = {0, 1}}},
                       {.shards = 3, .persistence_threshold_elems = 0})),
        grads(plan.units[0], plan.params, accum, pool) {}

  std::int64_t held() const { return ledger.now()[MemoryKind::gradients]; }
  std::int64_t elems() const { return plan.units[0].layout.padded_elems(); }
  at::Tensor slot(int number) {
    const layout::ElemRange range = plan.units[0].layout.slots()[static_cast<std::size_t>(number)];
    return grads.flat().narrow(0, range.begin, range.size());
  }

  Plan plan;
  store::Ledger ledger;
  store::Pool pool{c10::kCPU, ledger};
  LocalGrads grads;
};

TEST(LocalGrads, HasMemoryFromTheFirstGradientToTheLastUse) {
  GradsOfUnit one(DType::fp32, DType::fp32);
  EXPECT_TRUE(one.grads.empty());
  EXPECT_EQ(one.held(), 0);
  one.grads.put(0, at::ones({5}));
  EXPECT_EQ(one.held(), 4 * one.elems());
  one.grads.drop();
  EXPECT_TRUE(one.grads.empty());
  EXPECT_EQ(one.held(), 0);
}

// What stood in the memory before must reach nobody: not of a slot, nor of the padding.
TEST(LocalGrads, WhatDidNotComeIsZero) {
  GradsOfUnit one(DType::fp32, DType::fp32);
  one.grads.put(0, at::ones({5}));
  one.grads.complete().fill_(std::numeric_limits<float>::quiet_NaN());
  one.grads.drop();
  one.grads.put(0, at::full({5}, 3.0));
  EXPECT_EQ(one.grads.complete().sum().item<double>(), 15);
  EXPECT_EQ(one.grads.flat().numel(), one.elems());
}

TEST(LocalGrads, ASecondGradientIsAddedAndOneAfterADropIsNot) {
  GradsOfUnit one(DType::fp32, DType::fp32);
  const at::Tensor large = at::ones({100, 100});  // beyond what is copied by hand
  for (const int slot : {0, 1}) {
    const at::Tensor grad = slot == 0 ? at::ones({5}) : large;
    one.grads.put(slot, grad);
    one.grads.put(slot, grad);
    EXPECT_TRUE(one.slot(slot).eq(2).all().item<bool>());
  }
  one.grads.drop();
  one.grads.put(1, large);
  one.grads.complete();
  EXPECT_TRUE(one.slot(1).eq(1).all().item<bool>());
}

// 256 + 1 is 256 in bf16: one gradient travels as it came, a sum is kept in the wider dtype.
TEST(LocalGrads, OnlyASumTakesTheWiderDtype) {
  GradsOfUnit one(DType::bf16, DType::fp32);
  one.grads.put(0, at::full({5}, 256.0, at::kBFloat16));
  EXPECT_EQ(one.grads.complete().scalar_type(), at::kBFloat16);
  EXPECT_EQ(one.held(), 2 * one.elems());
  one.grads.put(0, at::ones({5}, at::kBFloat16));
  EXPECT_EQ(one.grads.complete().scalar_type(), at::kFloat);
  EXPECT_EQ(one.held(), 4 * one.elems());
  EXPECT_TRUE(one.slot(0).eq(257).all().item<bool>());
  EXPECT_TRUE(one.slot(1).eq(0).all().item<bool>());
}

TEST(LocalGrads, TakesSparseAndStridedGradients) {
  GradsOfUnit one(DType::fp32, DType::fp32);
  const at::Tensor rows = at::arange(100 * 100, at::kFloat).view({100, 100});
  one.grads.put(1, rows.t());
  one.grads.complete();
  EXPECT_TRUE(one.slot(1).view({100, 100}).equal(rows.t()));
  one.grads.drop();
  one.grads.put(1, rows.to_sparse());
  EXPECT_TRUE(one.slot(1).view({100, 100}).equal(rows));
  one.grads.put(1, rows.to_sparse());
  EXPECT_TRUE(one.slot(1).view({100, 100}).equal(2 * rows));
}

TEST(LocalGrads, WhoTakesTheBufferKeepsItsMemory) {
  GradsOfUnit one(DType::fp32, DType::fp32);
  one.grads.put(0, at::ones({5}));
  one.grads.complete();
  at::Tensor taken = one.grads.take();
  EXPECT_TRUE(one.grads.empty());
  EXPECT_EQ(one.held(), 4 * one.elems());
  one.grads.put(0, at::full({5}, 7.0));
  EXPECT_EQ(taken.sum().item<double>(), 5);
  taken.reset();
  EXPECT_EQ(one.held(), 4 * one.elems());
}

}  // namespace
}  // namespace capstan::shard

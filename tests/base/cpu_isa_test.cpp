#include "capstan/base/cpu_isa.h"

#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

namespace capstan {
namespace {

TEST(CpuIsa, DistrustsMatrixInstructionsWithoutTileSizes) {
  EXPECT_FALSE(amx_is_broken({.amx = false, .highest_leaf = 0x1c}));
  EXPECT_FALSE(amx_is_broken({.amx = true, .highest_leaf = 0x20, .tile_sizes = true}));
  EXPECT_TRUE(amx_is_broken({.amx = true, .highest_leaf = 0x1c, .tile_sizes = false}));
  EXPECT_TRUE(amx_is_broken({.amx = true, .highest_leaf = 0x20, .tile_sizes = false}));
}

TEST(CpuIsa, LeavesTheUsersChoiceAlone) {
  const char* const before = std::getenv("ONEDNN_MAX_CPU_ISA");
  const std::string kept = before == nullptr ? "" : before;
  setenv("ONEDNN_MAX_CPU_ISA", "AVX2", 1);
  avoid_broken_amx();
  EXPECT_STREQ(std::getenv("ONEDNN_MAX_CPU_ISA"), "AVX2");
  unsetenv("ONEDNN_MAX_CPU_ISA");
  avoid_broken_amx();
  EXPECT_EQ(std::getenv("ONEDNN_MAX_CPU_ISA") != nullptr, amx_is_broken(read_cpu_claims()));
  if (!kept.empty()) setenv("ONEDNN_MAX_CPU_ISA", kept.c_str(), 1);
}

TEST(CpuIsa, ProductsOfSixteenBitsNeedTheirInstructions) {
  const CpuClaims avx2;
  const CpuClaims zen4{.avx512_bf16 = true};
  const CpuClaims sapphire_rapids{.amx = true, .avx512_bf16 = true, .avx512_fp16 = true};
  EXPECT_TRUE(has_products_of(DType::fp32, avx2, ""));
  EXPECT_FALSE(has_products_of(DType::bf16, avx2, ""));
  EXPECT_FALSE(has_products_of(DType::fp16, avx2, ""));
  EXPECT_TRUE(has_products_of(DType::bf16, zen4, ""));
  EXPECT_FALSE(has_products_of(DType::fp16, zen4, ""));
  EXPECT_TRUE(has_products_of(DType::bf16, sapphire_rapids, ""));
  EXPECT_TRUE(has_products_of(DType::fp16, sapphire_rapids, ""));
}

TEST(CpuIsa, InstructionsThatTheKernelsMayNotUseDoNotCount) {
  const CpuClaims all{.amx = true, .avx512_bf16 = true, .avx512_fp16 = true};
  for (const char* limit : {"SSE41", "AVX2", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI"}) {
    EXPECT_FALSE(has_products_of(DType::bf16, all, limit)) << limit;
    EXPECT_FALSE(has_products_of(DType::fp16, all, limit)) << limit;
  }
  EXPECT_TRUE(has_products_of(DType::bf16, all, "AVX512_CORE_BF16"));
  EXPECT_FALSE(has_products_of(DType::fp16, all, "AVX512_CORE_BF16"));
  for (const char* limit : {"AVX10_1_512", "AVX512_CORE_AMX", "DEFAULT"}) {
    EXPECT_TRUE(has_products_of(DType::bf16, all, limit)) << limit;
    EXPECT_TRUE(has_products_of(DType::fp16, all, limit)) << limit;
  }
}

}  // namespace
}  // namespace capstan

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

}  // namespace
}  // namespace capstan

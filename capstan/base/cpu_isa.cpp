#include "capstan/base/cpu_isa.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include <cpuid.h>

namespace capstan {
namespace {

// Limits of ONEDNN_MAX_CPU_ISA that leave out the products of 16-bit numbers, weakest first. Of
// these the last one has those of bf16.
constexpr std::array<std::string_view, 8> kWithoutProducts = {
    "SSE41",           "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI",
    "AVX512_CORE_BF16"};

}  // namespace

CpuClaims read_cpu_claims() {
  constexpr unsigned kAmxBf16 = 1U << 22;
  constexpr unsigned kAmxTile = 1U << 24;
  constexpr unsigned kAvx512Fp16 = 1U << 23;
  constexpr unsigned kAvx512Bf16 = 1U << 5;
  CpuClaims claims;
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  claims.highest_leaf = __get_cpuid_max(0, nullptr);
  const bool wide = __builtin_cpu_supports("avx512f") != 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) != 0) {
    claims.amx = (d & kAmxBf16) != 0 && (d & kAmxTile) != 0;
    claims.avx512_fp16 = wide && (d & kAvx512Fp16) != 0;
  }
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) != 0) {
    claims.avx512_bf16 = wide && (a & kAvx512Bf16) != 0;
  }
  // Sub-leaf 1 is the palette that kernels use; its EBX holds bytes per row and the tile count.
  if (__get_cpuid_count(0x1d, 1, &a, &b, &c, &d) != 0) claims.tile_sizes = b != 0;
  return claims;
}

void avoid_broken_amx() {
  if (!amx_is_broken(read_cpu_claims())) return;
  setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16", /*overwrite=*/0);
}

bool has_products_of(DType dtype, const CpuClaims& claims, std::string_view isa_limit) {
  if (dtype == DType::fp32) return true;
  const auto limit = std::find(kWithoutProducts.begin(), kWithoutProducts.end(), isa_limit);
  if (dtype == DType::fp16) return claims.avx512_fp16 && limit == kWithoutProducts.end();
  return claims.avx512_bf16 && limit >= kWithoutProducts.end() - 1;
}

bool computes_natively(DType dtype) {
  const char* const limit = std::getenv("ONEDNN_MAX_CPU_ISA");
  return has_products_of(dtype, read_cpu_claims(), limit == nullptr ? "" : limit);
}

}  // namespace capstan

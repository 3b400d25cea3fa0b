#include "capstan/base/cpu_isa.h"

#include <cstdlib>

#include <cpuid.h>

namespace capstan {

CpuClaims read_cpu_claims() {
  constexpr unsigned kAmxBf16 = 1U << 22;
  constexpr unsigned kAmxTile = 1U << 24;
  CpuClaims claims;
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  claims.highest_leaf = __get_cpuid_max(0, nullptr);
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) != 0) {
    claims.amx = (d & kAmxBf16) != 0 && (d & kAmxTile) != 0;
  }
  // Sub-leaf 1 is the palette that kernels use; its EBX holds bytes per row and the tile count.
  if (__get_cpuid_count(0x1d, 1, &a, &b, &c, &d) != 0) claims.tile_sizes = b != 0;
  return claims;
}

void avoid_broken_amx() {
  if (!amx_is_broken(read_cpu_claims())) return;
  setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16", /*overwrite=*/0);
}

}  // namespace capstan

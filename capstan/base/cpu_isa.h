// What this CPU's instructions mean for libtorch's kernels: which of them crash, and in which
// dtypes matrix products are fast.
#pragma once

#include <string_view>

#include "capstan/base/dtype.h"

namespace capstan {

// What the processor says about itself.
struct CpuClaims {
  bool amx = false;           // leaf 7: tiles and their bf16 products
  unsigned highest_leaf = 0;  // of CPUID
  bool tile_sizes = false;    // leaf 0x1d describes a palette of tiles
  bool avx512_bf16 = false;   // these two as far as the system lets programs use them
  bool avx512_fp16 = false;
};

CpuClaims read_cpu_claims();

constexpr bool amx_is_broken(const CpuClaims& claims) {
  return claims.amx && (claims.highest_leaf < 0x1d || !claims.tile_sizes);
}

// Virtual machines may announce matrix instructions (AMX) but hide how large the tiles are:
// libtorch's kernels believe the announcement and die of an illegal instruction. This tells its
// kernel library to leave AMX alone where it is broken, unless the user has set ONEDNN_MAX_CPU_ISA.
// Changes the environment: call it first thing in main().
void avoid_broken_amx();

// Whether matrix products of this dtype have instructions that libtorch's kernel library may use;
// `isa_limit` is the value of ONEDNN_MAX_CPU_ISA. Where they have none they are emulated, which is
// several to a hundred times slower than fp32.
bool has_products_of(DType dtype, const CpuClaims& claims, std::string_view isa_limit);

// The same for this processor and this process's environment.
bool computes_natively(DType dtype);

}  // namespace capstan

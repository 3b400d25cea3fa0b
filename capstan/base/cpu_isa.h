// Works around virtual machines that announce matrix instructions (AMX) but hide how large the
// tiles are: libtorch's kernels believe the announcement and die of an illegal instruction.
#pragma once

namespace capstan {

// What the processor says about itself.
struct CpuClaims {
  bool amx = false;           // leaf 7: tiles and their bf16 products
  unsigned highest_leaf = 0;  // of CPUID
  bool tile_sizes = false;    // leaf 0x1d describes a palette of tiles
};

CpuClaims read_cpu_claims();

constexpr bool amx_is_broken(const CpuClaims& claims) {
  return claims.amx && (claims.highest_leaf < 0x1d || !claims.tile_sizes);
}

// Tells libtorch's kernel library to leave AMX alone where it is broken, unless the user has set
// ONEDNN_MAX_CPU_ISA. Changes the environment: call it first thing in main().
void avoid_broken_amx();

}  // namespace capstan

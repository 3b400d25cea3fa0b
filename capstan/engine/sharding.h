// From options to how a model is sharded: mesh, units, where state lives. Plain values, for an
// engine, for estimates and for plans; needs no libtorch.
#pragma once

#include <cstdint>

#include "capstan/engine/options.h"
#include "capstan/layout/mesh.h"
#include "capstan/shard/plan.h"
#include "capstan/shard/settings.h"

namespace capstan::engine {

// GEMM kernels are chosen by the alignment of their operands: the same at every stage.
inline constexpr std::int64_t kCpuAlignBytes = 64;
inline constexpr std::int64_t kCudaAlignBytes = 512;

// How the sum over ranks becomes the average: a factor before it and one after.
struct Averaging {
  double before_sum = 1;
  double after_sum = 1;
};
Averaging averaging(const comm::Options& options, int ranks);

// The ranks as a grid. Throws ConfigError where they do not form groups as large as asked for.
layout::Mesh make_mesh(const Options& options, int ranks);

// Whether a second copy of the parameters is kept: among fewer ranks than share the first.
bool keeps_near(const shard::Options& options, int ranks);

shard::PlanOptions plan_options(const Options& options, const layout::Mesh& mesh,
                                std::int64_t align_bytes);
shard::StateSettings state_settings(const Options& options);
shard::Settings shard_settings(const Options& options, const layout::Mesh& mesh,
                               const shard::StateSettings& states);

}  // namespace capstan::engine

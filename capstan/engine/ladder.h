// From fast to frugal: the steps to take, in the order users know, when memory is out. Plain
// values; needs no libtorch.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/engine/options.h"

namespace capstan::engine {

// In the order in which they are tried. A later one costs more time, or more hardware.
enum class Rung {
  micro_batch,        // one sample at a time, accumulated
  recompute,          // activations are computed again in backward
  stage2,             // gradients and optimizer state are sharded
  offload_optimizer,  // masters, moments and gradient sums go to host memory
  stage3,             // parameters are sharded too
  offload_params,     // their shards go to host memory
  offload_both,       // stage 3 with both in host memory
  limits,             // nothing is gathered ahead or kept for reuse
  half_precision,     // parameters and activations in 16 bits
  nvme,               // both on disks
};
std::vector<Rung> ladder();

std::string_view to_string(Rung rung);  // as a short title: "stage 2"

// What the options do not say.
struct Ground {
  int ranks = 1;                        // that see different data: what sharding is over
  bool on_gpu = true;                   // false: device and host are the same memory
  std::vector<std::string> nvme_paths;  // folders on fast disks; empty: none are known
};

// The options one rung further down, changed in nothing else; nothing where they stand there or
// below, or where the rung saves nothing on this ground.
std::optional<Options> take(Rung rung, const Options& options, const Ground& ground);

// What to do, in the user's names of the options.
std::string advice(Rung rung, const Options& options);

// The first rung that these options can still take; below the last one, more ranks. Who computes
// activations again without these options is told of the rung after it as well.
std::string next_saving(const Options& options, const Ground& ground);

}  // namespace capstan::engine

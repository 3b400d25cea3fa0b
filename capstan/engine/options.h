// Everything an Engine needs to know, as one plain value. C++ programs fill it directly; config
// fills it from JSON.
#pragma once

#include <cstdint>
#include <optional>

#include "capstan/base/log.h"
#include "capstan/base/option_names.h"
#include "capstan/checkpoint/options.h"
#include "capstan/comm/options.h"
#include "capstan/io/options.h"
#include "capstan/monitor/options.h"
#include "capstan/optim/options.h"
#include "capstan/pipeline/options.h"
#include "capstan/precision/options.h"
#include "capstan/profile/options.h"
#include "capstan/recompute/options.h"
#include "capstan/schedule/options.h"
#include "capstan/shard/options.h"
#include "capstan/store/options.h"

namespace capstan::engine {

// Invariant: train_samples = micro_samples * accumulation_steps * (data-parallel ranks).
struct BatchOptions {
  std::int64_t train_samples = 1;  // per optimizer step, over all ranks
  std::int64_t micro_samples = 1;  // per rank and forward; larger is faster and needs more memory
  std::int64_t accumulation_steps = 1;  // forward-backwards per optimizer step; costs no memory
  // true: step() updates at every accumulation_steps-th call. false: at every call.
  bool managed_accumulation = true;
  bool operator==(const BatchOptions&) const = default;
};

// How many ranks share one model. Their product divides the number of ranks; the rest is
// data-parallel.
struct MeshOptions {
  int pipe = 1;      // stages of a pipeline, each with some of the layers
  int sequence = 1;  // ranks with parts of the same sequences
  int tensor = 1;    // ranks with parts of the same layers
  bool operator==(const MeshOptions&) const = default;

  int product() const { return pipe * sequence * tensor; }
};

struct Options {
  BatchOptions batch;
  MeshOptions mesh;
  pipeline::Options pipeline;           // where mesh.pipe is more than one
  double gradient_clipping = 1.0;       // largest global L2 norm of the gradients; 0: no clipping
  LogLevel log_level = LogLevel::info;  // progress lines are of level info
  std::optional<optim::Options> optimizer;    // unset: the caller brings one
  std::optional<schedule::Options> schedule;  // unset: the caller's, or constant
  precision::Options precision;
  shard::Options shard;
  store::Options store;
  comm::Options comm;
  io::Options io;
  recompute::Options recompute;
  profile::Options profile;
  monitor::Options monitor;
  checkpoint::Options checkpoint;
  OptionNames names;  // for messages
  bool operator==(const Options&) const = default;
};

}  // namespace capstan::engine

// Where each kind of state lives between uses: device, host or nvme. A placement is independent of
// the stage.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace capstan::store {

enum class Placement { device, host, nvme };

struct ParamOptions {
  Placement placement = Placement::device;
  bool pin = true;        // page-locked host memory: fast copies, unavailable to others
  std::string nvme_path;  // nvme: a folder on a fast disk; swap files go below it
  int buffer_count = 5;   // nvme: staging buffers; more hide more latency
  std::int64_t buffer_bytes = 200'000'000;         // nvme: size of each staging buffer
  std::int64_t max_in_host_bytes = 2'000'000'000;  // nvme: shards kept in host memory all the same
  bool operator==(const ParamOptions&) const = default;
};

struct OptimizerOptions {
  Placement placement = Placement::device;  // masters and states; the update runs where they live
  bool pin = true;
  std::string nvme_path;
  int buffer_count = 4;        // nvme: tiles in flight; parameter, gradient and each state need one
  bool pipeline_read = false;  // nvme: read the next tile while this one is computed
  bool pipeline_write = false;  // nvme: write the last tile while this one is computed
  bool fast_init = false;  // nvme: make the masters from 16-bit shards that are on nvme already
  double ratio = 1.0;      // host: share of the elements whose state is offloaded; the rest stays
  // host: the update runs on while the next forward has begun; each unit is waited for at its use.
  // Unset: at stage 3, where nobody can read a parameter without that wait.
  std::optional<bool> late_updates;
  bool operator==(const OptimizerOptions&) const = default;
};

struct Options {
  ParamOptions params;
  OptimizerOptions optimizer;
  Placement gradients = Placement::device;  // gradient shards; host follows an offloaded optimizer
  bool operator==(const Options&) const = default;
};

}  // namespace capstan::store

// Where each kind of state lives between uses: device, host or nvme. A placement is independent of
// the stage.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace capstan::store {

enum class Placement { device, host, nvme };

// measured: both ways are tried, then the faster one is used.
enum class EarlyUpdates { never, always, measured };

struct ParamOptions {
  Placement placement = Placement::device;
  bool pin = true;  // page-locked host memory: fast copies, unavailable to others
  std::vector<std::string> nvme_paths;  // nvme: folders on fast disks, used in parallel
  // nvme: so many buffers of this size hold what was read ahead of its use, together.
  int buffer_count = 5;
  std::int64_t buffer_bytes = 200'000'000;
  bool operator==(const ParamOptions&) const = default;
};

struct OptimizerOptions {
  Placement placement = Placement::device;  // masters and states; the update runs where they live
  bool pin = true;
  std::vector<std::string> nvme_paths;  // nvme: folders on fast disks, used in parallel
  int buffer_count = 4;  // nvme: tiles in host memory: one is updated, the others travel; 3 or more
  double ratio = 1.0;    // host: share of the elements whose state is offloaded; the rest stays
  bool auto_ratio = false;  // host: only what the device cannot hold, at most `ratio`
  // host: the update runs on while the next forward has begun; each unit is waited for at its use.
  // Unset: at stage 3, where nobody can read a parameter without that wait.
  std::optional<bool> late_updates;
  // host: units are updated in backward, when their gradients have come, into memory beside their
  // state. Where the norm then demands another factor, or the step is skipped, that is dropped.
  EarlyUpdates early_updates = EarlyUpdates::never;
  std::int64_t early_bytes = std::int64_t{8} << 30;  // at most this much memory for that
  double core_share = 1.0;  // host: of the threads that libtorch would use, for the update
  bool operator==(const OptimizerOptions&) const = default;
};

struct Options {
  ParamOptions params;
  OptimizerOptions optimizer;
  // For auto_ratio: what the engine may take of each device, activations among it (unset: what is
  // free at its start); and what it leaves to activations.
  std::optional<std::int64_t> device_bytes;
  std::int64_t activation_bytes = std::int64_t{8} << 30;
  bool operator==(const Options&) const = default;
};

}  // namespace capstan::store

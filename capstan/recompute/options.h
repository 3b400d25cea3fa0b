// Activation checkpointing: which activations are computed again in backward instead of kept.
#pragma once

#include <optional>

namespace capstan::recompute {

struct Options {
  bool enabled = false;  // less memory for activations, about a third more compute
  std::optional<int>
      checkpoint_count;      // blocks are cut into so many spans; unset: one span per block
  int span_blocks = 0;       // or into spans of so many, the last may be shorter; 0: not
  bool to_host = false;      // kept activations go to host memory: less again, more copying
  bool synchronize = false;  // wait for the device at each span's edge; for measuring only
  bool profile = false;      // time forward and backward of each span
  bool operator==(const Options&) const = default;
};

}  // namespace capstan::recompute

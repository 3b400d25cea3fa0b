// How training state is saved and loaded.
#pragma once

#include <cstdint>

namespace capstan::checkpoint {

// Ranks that save under different tags: say nothing, warn, or stop.
enum class TagValidation { ignore, warn, fail };

struct Options {
  TagValidation tag_validation = TagValidation::warn;
  bool load_universal = false;           // read upstream's universal layout
  bool load_from_fp32_weights = true;    // masters from saved fp32; false: from the 16-bit weights
  bool asynchronous = false;             // write in the background; costs one bounded host buffer
  std::int64_t buffer_bytes = 64 << 20;  // the writer's buffer
  // asynchronous: host memory for what the next update would overwrite before it is written; with
  // less than a rank's state the update waits for the disk
  std::int64_t snapshot_bytes = std::int64_t{4} << 30;
  bool double_buffer = true;  // fill one while the other is written
  bool operator==(const Options&) const = default;
};

}  // namespace capstan::checkpoint

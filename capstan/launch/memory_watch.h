// Notices that the kernel killed something for lack of host memory, and knows the limit.
#pragma once

#include <cstdint>
#include <string>

namespace capstan::launch {

struct MemoryLimit {
  std::int64_t bytes = 0;  // 0: unknown
  std::string name;
};

// The tightest limit on this process: its cgroup's (version 1 or 2) or the machine's memory.
MemoryLimit host_memory_limit();

// Remembers the kernel's counters of out-of-memory kills. Threads: one.
class MemoryWatch {
 public:
  MemoryWatch() : seen_(read_kills()) {}
  // True when a kill was counted since construction.
  bool has_killed() const { return read_kills() > seen_; }

 private:
  static std::int64_t read_kills();
  std::int64_t seen_;
};

}  // namespace capstan::launch

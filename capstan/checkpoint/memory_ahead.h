// Memory for the first background save, taken beside training: page-locking it takes seconds, for
// which that save would let training stand still.
#pragma once

#include <cstdint>
#include <thread>
#include <vector>

#include "capstan/checkpoint/background_save.h"

namespace capstan::checkpoint {

// Holds all of `sizes` at a time and then gives them back to where they came from, which keeps them
// for the save. Memory that cannot be had is left to the save, which tells of it.
// Owns:    its thread.
class MemoryAhead {
 public:
  MemoryAhead(std::vector<std::int64_t> sizes, TakeMemory take_memory);
  // Ends early; what was taken is given back.
  ~MemoryAhead() = default;
  MemoryAhead(const MemoryAhead&) = delete;
  MemoryAhead& operator=(const MemoryAhead&) = delete;

  void wait();  // until it has all

 private:
  std::jthread taker_;
};

}  // namespace capstan::checkpoint

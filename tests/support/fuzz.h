// Runs a reader over changed inputs: whatever the bytes, it gives a value or throws an error for
// the user, within a minute and with memory in proportion to the input.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tests/support/mutator.h"

namespace capstan::test {

struct FuzzReport {
  std::int64_t inputs = 0;
  std::int64_t accepted = 0;
  std::int64_t refused = 0;
  std::int64_t peak_bytes = 0;  // of memory, beyond what was in use before, over all inputs
  std::string failure;          // empty, or what went wrong with the input that did it
};

struct FuzzReader {
  std::string name;
  Corpus corpus;
  // Throws as the reader does; Error (but not InternalError) is a refusal.
  std::function<void(const std::string& input)> read;
  std::int64_t bytes_per_byte = 2000;  // memory that a byte of the input may cost
};

// Stops at the first failure. Ends the process with status 3 when one input takes longer than a
// minute.
FuzzReport run_fuzz(const FuzzReader& reader, std::int64_t count, std::uint64_t seed);

// Memory from operator new that is in use, and the most since reset_peak_memory(); counted where
// counted_memory.cpp is linked.
std::int64_t memory_in_use();
std::int64_t peak_memory();
void reset_peak_memory();

}  // namespace capstan::test

// Mutated configurations through reader and resolution: whatever the bytes, the outcome is a
// resolved configuration, a list of problems, or a ConfigError.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace capstan::config {

struct FuzzReport {
  std::int64_t inputs = 0;
  std::int64_t resolved = 0;
  std::int64_t with_problems = 0;  // readable, but not a valid configuration
  std::int64_t unreadable = 0;
  std::string failure;  // empty, or what went wrong with the text that did it
};

// The texts that mutations start from: every snippet, and texts made from the schema.
std::vector<std::string> fuzz_corpus();

// Equal arguments give equal inputs. Stops at the first failure. Ends the process with status 3
// when one input takes longer than a minute.
FuzzReport run_fuzz(std::int64_t count, std::uint64_t seed, const std::vector<std::string>& corpus);

}  // namespace capstan::config

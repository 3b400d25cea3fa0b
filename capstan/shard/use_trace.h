// In which order units are used, learnt from the last pass (everything between the ends of two
// backwards), so that the next ones can be gathered ahead. Pure: no tensors, no communication.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace capstan::shard {

// Ranks:   equal uses on all ranks give equal answers on all ranks.
// Threads: one caller at a time.
class UseTrace {
 public:
  // A unit is about to be used. Follows the recorded pass; after a use that was not expected it
  // continues at the next place where that unit is recorded, if there is one.
  void use(int unit);
  void end_pass();

  // What the recorded pass used after this point, in order; empty when nothing is known.
  std::span<const int> upcoming() const;
  // Sum of weights[u] over the units used before `unit` comes again, each counted once; nothing
  // when it does not come again in this pass.
  std::optional<std::int64_t> distance(int unit, std::span<const std::int64_t> weights) const;

  // How many uses did not come as recorded, since the start.
  std::int64_t surprises() const { return surprises_; }

 private:
  std::vector<int> recorded_;  // the last complete pass
  std::vector<int> current_;   // this pass so far
  std::size_t position_ = 0;   // in recorded_
  bool lost_ = true;           // the last use was not found in recorded_
  std::int64_t surprises_ = 0;
};

}  // namespace capstan::shard

// Which samples this rank trains on next: shuffled anew each epoch, shared out over the
// data-parallel ranks, and resumable from one number.
#pragma once

#include <cstdint>
#include <vector>

#include "capstan/data/options.h"

namespace capstan::data {

struct RankOf {
  int rank = 0;
  int world_size = 1;  // data-parallel ranks
};

// The order of samples is the same for every world size; a batch of all ranks together is a run of
// that order, rank 0 first. So a run resumed on other ranks goes on with the very next sample.
// Ranks: every rank calls next() with the same count.
class Sampler {
 public:
  // Throws ConfigError when there are no samples.
  Sampler(std::int64_t samples, RankOf ranks, const Options& options);

  // The next `count` samples of this rank. Without drop_last a batch that reaches the end of an
  // epoch is filled from the next one, so each sample comes once per epoch. With drop_last the
  // rest of the epoch that is too small for a batch of all ranks is left out.
  std::vector<std::int64_t> next(std::int64_t count);

  // Samples taken or left out so far, by all ranks together, since the first epoch began.
  std::int64_t position() const { return position_; }
  // Throws ConfigError for a number of samples that cannot be.
  void seek(std::int64_t position);
  std::int64_t epoch() const { return position_ / samples_; }

 private:
  std::int64_t samples_;
  RankOf ranks_;
  Options options_;
  std::int64_t position_ = 0;
};

}  // namespace capstan::data

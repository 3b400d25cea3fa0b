#include "capstan/data/sampler.h"

#include <string>

#include "capstan/base/error.h"
#include "capstan/data/permutation.h"

namespace capstan::data {

Sampler::Sampler(std::int64_t samples, RankOf ranks, const Options& options)
    : samples_(samples), ranks_(ranks), options_(options) {
  if (samples <= 0) {
    throw ConfigError({.what = "there are no samples to train on",
                       .where = "the training data",
                       .fix = "use more text, or shorter sequences"});
  }
}

void Sampler::seek(std::int64_t position) {
  if (position < 0) {
    throw ConfigError({.what = "the checkpoint says that the data continues at sample " +
                               std::to_string(position),
                       .where = "the training data",
                       .fix = "load another checkpoint; this one was damaged or changed"});
  }
  position_ = position;
}

std::vector<std::int64_t> Sampler::next(std::int64_t count) {
  const std::int64_t all_ranks = count * ranks_.world_size;
  const std::int64_t left = samples_ - position_ % samples_;
  if (options_.drop_last && left < all_ranks) {
    if (all_ranks > samples_) {
      throw ConfigError({.what = "an epoch has only " + std::to_string(samples_) +
                                 " samples, but a batch over all ranks has " +
                                 std::to_string(all_ranks),
                         .where = "the training data, with drop_last",
                         .fix = "use more text, a smaller batch, or turn drop_last off"});
    }
    position_ += left;
  }
  std::vector<std::int64_t> mine;
  const std::int64_t begin = position_ + count * ranks_.rank;
  for (std::int64_t i = begin; i < begin + count; ++i) {
    const auto epoch = static_cast<std::uint64_t>(i / samples_);
    // A large odd stride, so that epoch 1 of one seed is not epoch 0 of the next seed.
    const std::uint64_t seed = options_.seed + epoch * 0x9e3779b97f4a7c15ULL;
    const std::int64_t place = i % samples_;
    mine.push_back(options_.shuffle ? Permutation(samples_, seed)(place) : place);
  }
  position_ += all_ranks;
  return mine;
}

}  // namespace capstan::data

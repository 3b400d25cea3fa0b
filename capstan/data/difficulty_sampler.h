// Which samples come next where a curriculum admits ever harder ones: drawn in proportion from all
// that are admitted, each group in a shuffled order of its own.
#pragma once

#include <cstdint>
#include <vector>

namespace capstan::data {

// How one metric orders the samples, easiest first.
struct MetricOrder {
  // What a difficulty bounds: the metric's value, or the share of all samples, in units of which
  // `percentiles` are all of them.
  enum class Bound { value, percentile };

  Bound bound = Bound::value;
  std::vector<std::int64_t> samples;  // every sample once, by rising value
  std::vector<std::int64_t> values;   // of each of these; only for Bound::value
  std::int64_t percentiles = 100;
};

// The samples of all ranks, in one order: whoever shares them out takes runs of it. All of it
// follows from the seed, from what was admitted when, and from how many samples were taken, so a
// run that goes on, on however many ranks, has the samples that one without a break would have had.
class DifficultySampler {
 public:
  // Without metrics all samples are admitted from the start. Throws ConfigError where an order is
  // not one of these samples.
  DifficultySampler(std::int64_t samples, std::vector<MetricOrder> metrics, std::uint64_t seed);

  // From here on also those whose difficulty is at most this, by every metric; what was admitted
  // stays so. Throws ConfigError where nothing is admitted at all.
  void admit(const std::vector<std::int64_t>& difficulties);

  // The next `count` samples. A group that is used up begins anew, in another order.
  std::vector<std::int64_t> next(std::int64_t count);
  // As next(), for a run that goes on.
  void skip(std::int64_t count);

  std::int64_t taken() const { return taken_; }
  std::int64_t admitted() const { return admitted_; }

 private:
  struct Group {
    std::vector<std::int64_t> samples;  // those that were admitted together
    std::int64_t taken = 0;
  };

  Group& draw_group();

  std::int64_t samples_;
  std::vector<MetricOrder> metrics_;
  std::uint64_t seed_;
  std::vector<bool> used_;  // by sample: it is in a group
  std::vector<Group> groups_;
  std::int64_t admitted_ = 0;
  std::int64_t taken_ = 0;
};

}  // namespace capstan::data

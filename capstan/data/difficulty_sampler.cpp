#include "capstan/data/difficulty_sampler.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "capstan/base/counter_random.h"
#include "capstan/base/error.h"
#include "capstan/data/permutation.h"

namespace capstan::data {
namespace {

// What the seed is used for.
constexpr std::uint64_t kDraws = 1;
constexpr std::uint64_t kOrders = 2;

void check_order(const MetricOrder& metric, std::int64_t samples) {
  std::vector<bool> seen(static_cast<std::size_t>(samples));
  bool good = std::ssize(metric.samples) == samples;
  for (const std::int64_t sample : metric.samples) {
    good = good && sample >= 0 && sample < samples && !seen[static_cast<std::size_t>(sample)];
    if (!good) break;
    seen[static_cast<std::size_t>(sample)] = true;
  }
  if (metric.bound == MetricOrder::Bound::value) {
    good = good && metric.values.size() == metric.samples.size() &&
           std::ranges::is_sorted(metric.values);
  } else {
    good = good && metric.percentiles > 0;
  }
  if (good) return;
  throw ConfigError({.what = "the index of a metric has " + std::to_string(metric.samples.size()) +
                             " samples, and not each of the data's " + std::to_string(samples) +
                             " once by rising value",
                     .where = "index_to_sample_path and index_to_metric_path",
                     .fix = "run the analyzer again, over the data that is trained on"});
}

// How many of the first samples a difficulty admits.
std::int64_t admits(const MetricOrder& metric, std::int64_t difficulty) {
  if (metric.bound == MetricOrder::Bound::value) {
    return std::ranges::upper_bound(metric.values, difficulty) - metric.values.begin();
  }
  const std::int64_t unit = std::clamp<std::int64_t>(difficulty, 0, metric.percentiles);
  return std::ssize(metric.samples) * unit / metric.percentiles;
}

}  // namespace

DifficultySampler::DifficultySampler(std::int64_t samples, std::vector<MetricOrder> metrics,
                                     std::uint64_t seed)
    : samples_(samples),
      metrics_(std::move(metrics)),
      seed_(seed),
      used_(static_cast<std::size_t>(samples)) {
  for (const MetricOrder& metric : metrics_) check_order(metric, samples);
  if (metrics_.empty()) admit({});
}

void DifficultySampler::admit(const std::vector<std::int64_t>& difficulties) {
  std::vector<std::uint8_t> good(static_cast<std::size_t>(samples_));  // by how many metrics
  for (std::size_t m = 0; m < metrics_.size(); ++m) {
    const std::int64_t bound = admits(metrics_[m], difficulties.at(m));
    for (std::int64_t i = 0; i < bound; ++i) {
      ++good[static_cast<std::size_t>(metrics_[m].samples[static_cast<std::size_t>(i)])];
    }
  }
  Group group;
  for (std::int64_t sample = 0; sample < samples_; ++sample) {
    const auto at = static_cast<std::size_t>(sample);
    if (good[at] != metrics_.size() || used_[at]) continue;
    used_[at] = true;
    group.samples.push_back(sample);
  }
  admitted_ += std::ssize(group.samples);
  if (!group.samples.empty()) groups_.push_back(std::move(group));
  if (admitted_ > 0) return;
  throw ConfigError({.what = "the curriculum admits none of " + std::to_string(samples_) +
                             " samples at the start",
                     .where = "min_difficulty",
                     .fix = "give a larger min_difficulty, at least that of the easiest sample"});
}

// In proportion to their sizes.
DifficultySampler::Group& DifficultySampler::draw_group() {
  const double drawn =
      uniform_number(derive_seed(seed_, kDraws), static_cast<std::uint64_t>(taken_++)) *
      static_cast<double>(admitted_);
  std::int64_t before = 0;
  for (Group& group : groups_) {
    before += std::ssize(group.samples);
    if (drawn < static_cast<double>(before)) return group;
  }
  return groups_.back();
}

std::vector<std::int64_t> DifficultySampler::next(std::int64_t count) {
  std::vector<std::int64_t> samples;
  for (std::int64_t i = 0; i < count; ++i) {
    Group& group = draw_group();
    const std::int64_t size = std::ssize(group.samples);
    const std::int64_t place = group.taken++;
    const auto number = static_cast<std::uint64_t>(&group - groups_.data());
    const std::uint64_t order = derive_seed(derive_seed(derive_seed(seed_, kOrders), number),
                                            static_cast<std::uint64_t>(place / size));
    const std::int64_t chosen = Permutation(size, order)(place % size);
    samples.push_back(group.samples[static_cast<std::size_t>(chosen)]);
  }
  return samples;
}

void DifficultySampler::skip(std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) ++draw_group().taken;
}

}  // namespace capstan::data

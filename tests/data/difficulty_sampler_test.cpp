#include "capstan/data/difficulty_sampler.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "capstan/base/error.h"

namespace capstan::data {
namespace {

using Bound = MetricOrder::Bound;

// Sample i has value i / 10: ten samples of each of ten values.
MetricOrder tens(Bound bound = Bound::value) {
  MetricOrder metric{.bound = bound, .percentiles = 10};
  for (std::int64_t i = 0; i < 100; ++i) {
    metric.samples.push_back(i);
    metric.values.push_back(i / 10);
  }
  return metric;
}

// The same values on other samples: sample 99 - i has value i / 10.
MetricOrder backwards() {
  MetricOrder metric = tens();
  std::ranges::reverse(metric.samples);
  return metric;
}

std::set<std::int64_t> set_of(const std::vector<std::int64_t>& samples) {
  return {samples.begin(), samples.end()};
}

std::int64_t largest(const std::vector<std::int64_t>& samples) {
  return *std::ranges::max_element(samples);
}

TEST(DifficultySampler, TakesOnlyWhatIsAdmittedAndEachOnceBeforeAnyTwice) {
  DifficultySampler sampler(100, {tens()}, 1);
  sampler.admit({2});
  const auto first = sampler.next(30);
  EXPECT_EQ(set_of(first).size(), 30U);
  EXPECT_EQ(largest(first), 29);
  const auto again = sampler.next(30);
  EXPECT_EQ(set_of(again), set_of(first));
  EXPECT_NE(again, first);  // in another order
  sampler.admit({9});
  EXPECT_EQ(sampler.admitted(), 100);
  EXPECT_GT(largest(sampler.next(60)), 29);
}

TEST(DifficultySampler, DrawsFromEarlierAndLaterGroupsInProportion) {
  DifficultySampler sampler(100, {tens()}, 1);
  sampler.admit({0});
  sampler.admit({9});  // 10 samples, then 90
  const auto drawn = sampler.next(10'000);
  const auto easy = std::ranges::count_if(drawn, [](std::int64_t sample) { return sample < 10; });
  EXPECT_NEAR(static_cast<double>(easy), 1000.0, 150.0);  // five deviations
}

TEST(DifficultySampler, CountsPercentilesOfAllSamples) {
  DifficultySampler sampler(100, {tens(Bound::percentile)}, 1);
  sampler.admit({3});
  EXPECT_EQ(sampler.admitted(), 30);
  sampler.admit({10});
  EXPECT_EQ(sampler.admitted(), 100);
  MetricOrder seven = tens(Bound::percentile);
  seven.percentiles = 7;  // 100 is no multiple of it: parts of 14 and 15
  DifficultySampler uneven(100, {seven}, 1);
  uneven.admit({1});
  EXPECT_EQ(uneven.admitted(), 14);
  uneven.admit({6});
  EXPECT_EQ(uneven.admitted(), 85);
  uneven.admit({7});
  EXPECT_EQ(uneven.admitted(), 100);
}

TEST(DifficultySampler, AdmitsWhatEveryMetricAdmits) {
  DifficultySampler sampler(100, {tens(), backwards()}, 1);
  sampler.admit({6, 5});  // below 70, and from 40 on
  EXPECT_EQ(sampler.admitted(), 30);
  const auto drawn = set_of(sampler.next(30));
  EXPECT_EQ(*drawn.begin(), 40);
  EXPECT_EQ(*drawn.rbegin(), 69);
  sampler.admit({9, 9});
  EXPECT_EQ(sampler.admitted(), 100);
}

TEST(DifficultySampler, GoesOnAsIfItHadNeverStopped) {
  const auto make = [] { return DifficultySampler(100, {tens()}, 7); };
  DifficultySampler whole = make();
  whole.admit({1});
  whole.next(33);
  whole.admit({4});
  whole.next(50);
  DifficultySampler on = make();
  on.admit({1});
  on.skip(33);
  on.admit({4});
  on.skip(50);
  EXPECT_EQ(on.taken(), 83);
  EXPECT_EQ(on.next(40), whole.next(40));
}

TEST(DifficultySampler, HasAllSamplesWithoutAMetric) {
  DifficultySampler sampler(10, {}, 3);
  EXPECT_EQ(set_of(sampler.next(10)).size(), 10U);
}

TEST(DifficultySampler, RefusesIndicesThatAreNotOfTheData) {
  EXPECT_THROW(DifficultySampler(99, {tens()}, 1), ConfigError);
  MetricOrder twice = tens();
  twice.samples[1] = 0;
  EXPECT_THROW(DifficultySampler(100, {twice}, 1), ConfigError);
  MetricOrder falls = tens();
  std::ranges::reverse(falls.values);
  EXPECT_THROW(DifficultySampler(100, {falls}, 1), ConfigError);
  DifficultySampler hard(100, {tens()}, 1);
  EXPECT_THROW(hard.admit({-1}), ConfigError);
}

}  // namespace
}  // namespace capstan::data

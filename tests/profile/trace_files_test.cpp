#include "capstan/profile/trace_files.h"

#include <map>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/json/reader.h"

namespace capstan::profile {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Trace sample() {
  RankTimeline first{.rank = 0, .place = "stage 0", .steps = {{3, 1000, 1100}}};
  first.spans = {{.lane = Lane::compute,
                  .name = "forward",
                  .unit = "</script><b>\"h.0\"",
                  .begin_us = 1000,
                  .end_us = 1060,
                  .computes = true},
                 {.lane = Lane::gather,
                  .name = "all_gather",
                  .unit = "h.1",
                  .detail = "3 elements",
                  .bytes = 12,
                  .begin_us = 1010.25,
                  .end_us = 1040},
                 {.lane = Lane::gather, .name = "all_gather", .begin_us = 1020, .end_us = 1030},
                 {.lane = Lane::wait,
                  .name = "all_gather",
                  .begin_us = 1060,
                  .end_us = 1080,
                  .computes = true}};
  RankTimeline second = first;
  second.rank = 1;
  return {.title = "a run", .ranks = {first, second}, .settings = {.stage = 3}};
}

double number(const json::Value& value) {
  return value.real() != nullptr ? *value.real() : static_cast<double>(*value.integer());
}

// What the format asks of every viewer's input: complete events with times, rows with names, and
// nothing that overlaps in a row.
TEST(ChromeTrace, IsWhatViewersRead) {
  const json::Value root = json::read(chrome_trace(sample()), "trace");
  std::map<std::pair<std::int64_t, std::int64_t>, double> ends;
  std::map<std::pair<std::int64_t, std::int64_t>, std::string> names;
  int complete = 0;
  for (const json::Value& event : *root.find("traceEvents")->array()) {
    const std::pair row(*event.find("pid")->integer(), *event.find("tid")->integer());
    if (*event.find("ph")->text() == "M") {
      if (*event.find("name")->text() == "thread_name") {
        names[row] = *event.find("args")->find("name")->text();
      }
      continue;
    }
    ++complete;
    ASSERT_EQ(*event.find("ph")->text(), "X");
    const double begin = number(*event.find("ts"));
    EXPECT_GE(begin, ends[row]);
    ends[row] = begin + number(*event.find("dur"));
  }
  EXPECT_EQ(complete, 8);
  EXPECT_EQ(ends.size(), 8U);
  for (const auto& [row, end] : ends) EXPECT_NE(names[row], "");
  EXPECT_THAT(chrome_trace(sample()), HasSubstr(R"("name": "gather 2")"));
  EXPECT_THAT(chrome_trace(sample()), HasSubstr(R"("name": "rank 1, stage 0")"));
  EXPECT_THAT(chrome_trace(sample()), HasSubstr(R"("ts": 10.25, "dur": 29.75)"));
}

TEST(TimelinePage, HoldsAllItNeedsAndNoNameEndsItsScript) {
  const std::string page = timeline_page(sample());
  EXPECT_THAT(page, HasSubstr("exposed: gather 20.0 %"));
  EXPECT_THAT(page, HasSubstr("shard.prefetch_bytes"));
  EXPECT_THAT(page, Not(HasSubstr("</script><b>")));
  EXPECT_THAT(page, HasSubstr("\\u003c/script>\\u003cb>"));
  for (const char* const remote : {"http:", "https:", "src=", "@import", "url("}) {
    EXPECT_THAT(page, Not(HasSubstr(remote)));
  }
}

TEST(TraceSummary, HasALinePerRankAndTheAdviceOnce) {
  EXPECT_EQ(trace_summary(sample()),
            "rank 0, stage 0: exposed: gather 20.0 %; computing 60.0 %, other 20.0 %\n"
            "rank 1, stage 0: exposed: gather 20.0 %; computing 60.0 %, other 20.0 %\n"
            "  gather costs 20.0 % of a step: parameters came too late: raise "
            "shard.prefetch_bytes, or shard.persistence_threshold_elems if the units are small\n");
  EXPECT_EQ(trace_summary({}), "");
}

TEST(TraceText, GivesBackWhatWasSent) {
  const RankTimeline timeline = sample().ranks[0];
  EXPECT_EQ(timeline_from(to_text(timeline)), timeline);
}

TEST(TraceText, RefusesWhatIsNoTimeline) {
  const std::string good = to_text(sample().ranks[0]);
  std::string lane = good;
  lane.replace(lane.find("[1,"), 3, "[9,");
  for (const std::string& bad :
       {std::string("[]"), std::string("{}"), good.substr(0, good.size() / 2), lane}) {
    EXPECT_THROW(timeline_from(bad), ConfigError) << bad;
  }
}

}  // namespace
}  // namespace capstan::profile

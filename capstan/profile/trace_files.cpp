#include "capstan/profile/trace_files.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/json/reader.h"
#include "capstan/json/writer.h"
#include "capstan/profile/trace_page.h"

namespace capstan::profile {
namespace {

// Rows of a lane in a viewer: spans in one row must not overlap.
constexpr int kMostRows = 100;

double first_of(const Trace& trace) {
  double first = std::numeric_limits<double>::max();
  for (const RankTimeline& rank : trace.ranks) {
    for (const TimelineSpan& span : rank.spans) first = std::min(first, span.begin_us);
    for (const StepWindow& step : rank.steps) first = std::min(first, step.begin_us);
  }
  return first;
}

// To a nanosecond.
json::Value rounded(double microseconds) {
  return json::Value(std::round(microseconds * 1000) / 1000);
}

// By span: the first row of its lane that is free. A span lies below those it overlaps.
std::vector<int> rows_of(const std::vector<TimelineSpan>& spans) {
  std::array<std::vector<double>, kLanes> busy_until;
  std::vector<int> rows;
  for (const TimelineSpan& span : spans) {
    std::vector<double>& ends = busy_until[static_cast<std::size_t>(span.lane)];
    auto free = std::ranges::find_if(ends, [&](double end) { return end <= span.begin_us; });
    if (free == ends.end() && static_cast<int>(ends.size()) < kMostRows) {
      free = ends.insert(ends.end(), 0);
    }
    if (free == ends.end()) --free;
    *free = std::max(*free, span.end_us);
    rows.push_back(static_cast<int>(free - ends.begin()));
  }
  return rows;
}

std::string name_of(const RankTimeline& rank) {
  return rank.place.empty() ? fmt::format("rank {}", rank.rank)
                            : fmt::format("rank {}, {}", rank.rank, rank.place);
}

json::Value object(std::vector<std::pair<std::string, json::Value>> members) {
  json::Value made{json::Object{}};
  for (auto& [key, value] : members) made.add(key, std::move(value));
  return made;
}

json::Value named(std::string_view what, int rank, int row, json::Value name) {
  return object(
      {{"ph", json::Value("M")},
       {"pid", json::Value(rank)},
       {"tid", json::Value(row)},
       {"name", json::Value(what)},
       {"args", object({{what.ends_with("index") ? "sort_index" : "name", std::move(name)}})}});
}

json::Value facts_of(const TimelineSpan& span) {
  json::Value facts{json::Object{}};
  if (!span.unit.empty()) facts.add("unit", json::Value(span.unit));
  if (span.bytes > 0) facts.add("bytes", json::Value(span.bytes));
  if (!span.detail.empty()) facts.add("detail", json::Value(span.detail));
  return facts;
}

void add_rank(json::Array& events, const RankTimeline& rank, double first_us) {
  events.push_back(named("process_name", rank.rank, 0, json::Value(name_of(rank))));
  events.push_back(named("process_sort_index", rank.rank, 0, json::Value(rank.rank)));
  const std::vector<int> rows = rows_of(rank.spans);
  std::map<int, std::string> names;
  for (std::size_t i = 0; i < rank.spans.size(); ++i) {
    const TimelineSpan& span = rank.spans[i];
    const int row = static_cast<int>(span.lane) * kMostRows + rows[i];
    names.emplace(row, rows[i] == 0 ? std::string(to_string(span.lane))
                                    : fmt::format("{} {}", to_string(span.lane), rows[i] + 1));
    events.push_back(object({{"ph", json::Value("X")},
                             {"pid", json::Value(rank.rank)},
                             {"tid", json::Value(row)},
                             {"cat", json::Value(to_string(span.lane))},
                             {"name", json::Value(span.name)},
                             {"ts", rounded(span.begin_us - first_us)},
                             {"dur", rounded(span.end_us - span.begin_us)},
                             {"args", facts_of(span)}}));
  }
  for (const auto& [row, name] : names) {
    events.push_back(named("thread_name", rank.rank, row, json::Value(name)));
    events.push_back(named("thread_sort_index", rank.rank, row, json::Value(row)));
  }
}

json::Value lines_of(const std::vector<std::string>& lines) {
  json::Array array;
  for (const std::string& line : lines) array.emplace_back(line);
  return json::Value(std::move(array));
}

json::Value page_rank(const RankTimeline& rank, const TracedSettings& settings, double first_us) {
  const std::vector<int> rows = rows_of(rank.spans);
  json::Array spans;
  for (std::size_t i = 0; i < rank.spans.size(); ++i) {
    const TimelineSpan& span = rank.spans[i];
    json::Array one;
    one.emplace_back(static_cast<int>(span.lane));
    one.emplace_back(rows[i]);
    one.push_back(rounded(span.begin_us - first_us));
    one.push_back(rounded(span.end_us - span.begin_us));
    one.emplace_back(span.name);
    one.emplace_back(span.unit);
    one.emplace_back(span.bytes);
    one.emplace_back(span.detail);
    spans.emplace_back(std::move(one));
  }
  json::Array steps;
  for (const StepWindow& step : rank.steps) {
    json::Array one;
    one.emplace_back(step.step);
    one.push_back(rounded(step.begin_us - first_us));
    one.push_back(rounded(step.end_us - first_us));
    steps.emplace_back(std::move(one));
  }
  const StepShares shares = shares_of(rank);
  return object({{"name", json::Value(name_of(rank))},
                 {"summary", json::Value(describe(shares))},
                 {"advice", lines_of(advice(shares, settings))},
                 {"steps", json::Value(std::move(steps))},
                 {"spans", json::Value(std::move(spans))}});
}

double exposed_us(const StepShares& shares) {
  double sum = 0;
  for (const double each : shares.exposed_us) sum += each;
  return sum;
}

}  // namespace

std::string chrome_trace(const Trace& trace) {
  json::Array events;
  const double first = first_of(trace);
  for (const RankTimeline& rank : trace.ranks) add_rank(events, rank, first);
  return json::write(object({{"displayTimeUnit", json::Value("ms")},
                             {"otherData", object({{"title", json::Value(trace.title)}})},
                             {"traceEvents", json::Value(std::move(events))}}),
                     {.indent = 0});
}

std::string timeline_page(const Trace& trace) {
  json::Array lanes;
  for (std::size_t i = 0; i < kLanes; ++i) lanes.emplace_back(to_string(static_cast<Lane>(i)));
  json::Array ranks;
  const double first = first_of(trace);
  for (const RankTimeline& rank : trace.ranks) {
    ranks.push_back(page_rank(rank, trace.settings, first));
  }
  std::string data = json::write(object({{"title", json::Value(trace.title)},
                                         {"lanes", json::Value(std::move(lanes))},
                                         {"ranks", json::Value(std::move(ranks))}}),
                                 {.indent = 0});
  // Names come from models: none may end the script.
  for (std::size_t at = 0; (at = data.find('<', at)) != std::string::npos;) {
    data.replace(at, 1, "\\u003c");
  }
  return fmt::format("{}{}{}", kPageHead, data, kPageTail);
}

std::string trace_summary(const Trace& trace) {
  std::string text;
  const RankTimeline* most = nullptr;
  double most_us = -1;
  for (const RankTimeline& rank : trace.ranks) {
    const StepShares shares = shares_of(rank);
    text += fmt::format("{}: {}\n", name_of(rank), describe(shares));
    if (exposed_us(shares) <= most_us) continue;
    most_us = exposed_us(shares);
    most = &rank;
  }
  if (most == nullptr) return text;
  for (const std::string& each : advice(shares_of(*most), trace.settings)) {
    text += fmt::format("  {}\n", each);
  }
  return text;
}

}  // namespace capstan::profile

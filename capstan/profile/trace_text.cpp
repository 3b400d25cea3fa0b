#include <utility>

#include "capstan/base/error.h"
#include "capstan/json/reader.h"
#include "capstan/json/writer.h"
#include "capstan/profile/trace_files.h"

namespace capstan::profile {
namespace {

// A trace is as long as the steps that it is of.
constexpr json::ReadLimits kLimits = {.bytes = std::size_t{1} << 30, .depth = 8};

[[noreturn]] void refuse() {
  throw ConfigError({.what = "this is not the timeline of a rank",
                     .where = "timeline",
                     .fix = "give what profile::to_text() wrote"});
}

double number(const json::Value& value) {
  if (const double* const real = value.real()) return *real;
  if (const std::int64_t* const integer = value.integer()) return static_cast<double>(*integer);
  refuse();
}

std::int64_t integer(const json::Value& value) {
  if (value.integer() == nullptr) refuse();
  return *value.integer();
}

const std::string& text(const json::Value& value) {
  if (value.text() == nullptr) refuse();
  return *value.text();
}

const json::Array& items(const json::Value* value, std::size_t count = 0) {
  if (value == nullptr || value->array() == nullptr) refuse();
  if (count > 0 && value->array()->size() != count) refuse();
  return *value->array();
}

TimelineSpan span_from(const json::Value& value) {
  const json::Array& of = items(&value, 8);
  const std::int64_t lane = integer(of[0]);
  if (lane < 0 || lane >= static_cast<std::int64_t>(kLanes) || of[7].boolean() == nullptr) refuse();
  return {.lane = static_cast<Lane>(lane),
          .name = text(of[1]),
          .unit = text(of[2]),
          .detail = text(of[3]),
          .bytes = integer(of[4]),
          .begin_us = number(of[5]),
          .end_us = number(of[6]),
          .computes = *of[7].boolean()};
}

}  // namespace

std::string to_text(const RankTimeline& timeline) {
  json::Array spans;
  for (const TimelineSpan& span : timeline.spans) {
    json::Array one;
    one.emplace_back(static_cast<int>(span.lane));
    one.emplace_back(span.name);
    one.emplace_back(span.unit);
    one.emplace_back(span.detail);
    one.emplace_back(span.bytes);
    one.emplace_back(span.begin_us);
    one.emplace_back(span.end_us);
    one.emplace_back(span.computes);
    spans.emplace_back(std::move(one));
  }
  json::Array steps;
  for (const StepWindow& step : timeline.steps) {
    json::Array one;
    one.emplace_back(step.step);
    one.emplace_back(step.begin_us);
    one.emplace_back(step.end_us);
    steps.emplace_back(std::move(one));
  }
  json::Value all{json::Object{}};
  all.add("rank", json::Value(timeline.rank))
      .add("place", json::Value(timeline.place))
      .add("spans", json::Value(std::move(spans)))
      .add("steps", json::Value(std::move(steps)));
  return json::write(all, {.indent = 0});
}

RankTimeline timeline_from(std::string_view given) {
  const json::Value all = json::read(given, "the timeline of a rank", kLimits);
  const json::Value* const rank = all.find("rank");
  const json::Value* const place = all.find("place");
  if (rank == nullptr || place == nullptr) refuse();
  RankTimeline timeline{.rank = static_cast<int>(integer(*rank)), .place = text(*place)};
  for (const json::Value& each : items(all.find("spans"))) {
    timeline.spans.push_back(span_from(each));
  }
  for (const json::Value& each : items(all.find("steps"))) {
    const json::Array& of = items(&each, 3);
    timeline.steps.push_back({integer(of[0]), number(of[1]), number(of[2])});
  }
  return timeline;
}

}  // namespace capstan::profile

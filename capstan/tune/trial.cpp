#include "capstan/tune/trial.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/json/reader.h"

namespace capstan::tune {
namespace {

constexpr std::array kEnds = {End::measured, End::out_of_memory, End::failed, End::too_long,
                              End::stopped};

// A number, whole or not; zero where there is none.
double number(const json::Value& value, std::string_view key) {
  const json::Value* found = value.find(key);
  if (found == nullptr) return 0;
  if (const std::int64_t* whole = found->integer()) return static_cast<double>(*whole);
  return found->real() != nullptr ? *found->real() : 0;
}

std::int64_t whole(const json::Value& value, std::string_view key) {
  return static_cast<std::int64_t>(number(value, key));
}

}  // namespace

std::optional<Record> read_record(const std::filesystem::path& file) {
  std::error_code missing;
  if (!std::filesystem::is_regular_file(file, missing)) return std::nullopt;
  try {
    const json::Value value = json::read_file(file).root;
    Record record{.stage = static_cast<int>(whole(value, "stage")),
                  .micro = {whole(value, "micro_batch"), whole(value, "accumulation_steps")},
                  .latency = number(value, "latency"),
                  .throughput = number(value, "throughput"),
                  .memory_bytes = whole(value, "memory_bytes")};
    const bool complete = record.latency > 0 && record.throughput > 0;
    return complete ? std::optional(record) : std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

bool tells_out_of_memory(std::string_view line) {
  return std::ranges::any_of(
      std::array{"OutOfMemoryError", "out of memory", "can't allocate memory", "std::bad_alloc",
                 "MemoryError", "Cannot allocate memory"},
      [&](std::string_view words) { return line.find(words) != std::string_view::npos; });
}

std::string difference(const Record& record, int stage, const MicroBatch& micro) {
  const auto told = [](std::string_view what, auto trained, auto wanted) {
    return fmt::format(
        "it trained with {} {} instead of {}: it does not take this from its "
        "configuration file; give the flag in autotuning.arg_mappings",
        what, trained, wanted);
  };
  if (record.micro.samples != micro.samples) {
    return told("train_micro_batch_size_per_gpu", record.micro.samples, micro.samples);
  }
  if (record.micro.accumulation_steps != micro.accumulation_steps) {
    return told("gradient_accumulation_steps", record.micro.accumulation_steps,
                micro.accumulation_steps);
  }
  return record.stage == stage ? "" : told("stage", record.stage, stage);
}

std::string_view to_string(End end) {
  switch (end) {
    case End::measured:
      return "measured";
    case End::out_of_memory:
      return "out of memory";
    case End::failed:
      return "failed";
    case End::too_long:
      return "took too long";
    case End::stopped:
      break;
  }
  return "stopped";
}

json::Value to_json(const Outcome& outcome) {
  json::Value value{json::Object{}};
  value.add("end", json::Value(to_string(outcome.end)));
  value.add("latency", json::Value(outcome.latency));
  value.add("throughput", json::Value(outcome.throughput));
  value.add("memory_bytes", json::Value(outcome.memory_bytes));
  value.add("why", json::Value(outcome.why));
  return value;
}

std::optional<Outcome> outcome_from(const json::Value& value) {
  const json::Value* end = value.find("end");
  const json::Value* why = value.find("why");
  if (end == nullptr || end->text() == nullptr || why == nullptr || why->text() == nullptr) {
    return std::nullopt;
  }
  const auto found =
      std::ranges::find_if(kEnds, [&](End each) { return to_string(each) == *end->text(); });
  if (found == kEnds.end() || *found == End::stopped) return std::nullopt;
  return Outcome{.end = *found,
                 .latency = number(value, "latency"),
                 .throughput = number(value, "throughput"),
                 .memory_bytes = whole(value, "memory_bytes"),
                 .why = *why->text()};
}

}  // namespace capstan::tune

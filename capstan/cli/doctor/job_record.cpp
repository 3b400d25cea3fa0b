#include "capstan/cli/doctor/job_record.h"

#include <cstdio>
#include <fstream>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "capstan/json/writer.h"
#include "capstan/launch/memory_watch.h"

namespace capstan::cli::doctor {
namespace {

using json::Array;
using json::Object;
using json::Value;

constexpr const char* kFormatKey = "capstan_job";
constexpr std::int64_t kFormat = 1;
constexpr std::size_t kMostRanks = 100'000;  // in a file from elsewhere

std::int64_t integer(const Value& object, const char* key) {
  const Value* const found = object.find(key);
  return found == nullptr || found->integer() == nullptr ? 0 : *found->integer();
}

std::string text(const Value& object, const char* key) {
  const Value* const found = object.find(key);
  return found == nullptr || found->text() == nullptr ? "" : *found->text();
}

Value to_json(const RankEnd& rank) {
  Array lines;
  for (const std::string& line : rank.last_lines) lines.emplace_back(line);
  const launch::Ending& ending = rank.ending;
  return Value(Object{})
      .add("exit_code", Value(ending.exit_code))
      .add("signal", Value(ending.signal))
      .add("after_s", Value(rank.after_s))
      .add("peak_rss_bytes", Value(ending.peak_rss_bytes))
      .add("out_of_memory", Value(ending.out_of_memory))
      .add("memory_limit_bytes", Value(ending.memory_limit_bytes))
      .add("memory_limit_name", Value(ending.memory_limit_name))
      .add("last_lines", Value(std::move(lines)));
}

RankEnd rank_from_json(const Value& value) {
  RankEnd rank;
  launch::Ending& ending = rank.ending;
  ending.exit_code = static_cast<int>(integer(value, "exit_code"));
  ending.signal = static_cast<int>(integer(value, "signal"));
  ending.peak_rss_bytes = integer(value, "peak_rss_bytes");
  const Value* const out_of_memory = value.find("out_of_memory");
  ending.out_of_memory =
      out_of_memory != nullptr && out_of_memory->boolean() != nullptr && *out_of_memory->boolean();
  ending.memory_limit_bytes = integer(value, "memory_limit_bytes");
  ending.memory_limit_name = text(value, "memory_limit_name");
  const Value* const after = value.find("after_s");
  if (after != nullptr && after->real() != nullptr) rank.after_s = *after->real();
  const Value* const lines = value.find("last_lines");
  if (lines == nullptr || lines->array() == nullptr) return rank;
  for (const Value& line : *lines->array()) {
    if (line.text() != nullptr) rank.last_lines.push_back(*line.text());
  }
  return rank;
}

void warn(const std::filesystem::path& path, const std::string& why) {
  std::fprintf(stderr, "capstan: warning: cannot write %s, which `capstan doctor` reads: %s\n",
               path.c_str(), why.c_str());
}

}  // namespace

JobRecord record_of(const launch::Plan& plan, const std::string& command,
                    const launch::Result& result) {
  JobRecord record{.command = command,
                   .exit_code = result.exit_code,
                   .first_failed_rank = result.first_failed_rank,
                   .sentence = result.sentence,
                   .ranks = {}};
  for (std::size_t rank = 0; rank < result.endings.size(); ++rank) {
    record.ranks.push_back({result.endings[rank],
                            std::chrono::duration<double>(result.ended_after[rank]).count(),
                            result.lines_of_ranks[rank]});
  }
  if (plan.hosts.size() == 1) {
    const launch::MemoryLimit limit = launch::host_memory_limit();
    record.memory_limit_bytes = limit.bytes;
    record.memory_limit_name = limit.name;
  }
  return record;
}

Value to_json(const JobRecord& record) {
  Array ranks;
  for (const RankEnd& rank : record.ranks) ranks.push_back(to_json(rank));
  return Value(Object{})
      .add(kFormatKey, Value(kFormat))
      .add("command", Value(record.command))
      .add("exit_code", Value(record.exit_code))
      .add("first_failed_rank", Value(record.first_failed_rank))
      .add("sentence", Value(record.sentence))
      .add("memory_limit_bytes", Value(record.memory_limit_bytes))
      .add("memory_limit_name", Value(record.memory_limit_name))
      .add("ranks", Value(std::move(ranks)));
}

std::optional<JobRecord> record_from_json(const Value& value) {
  const Value* const ranks = value.find("ranks");
  if (integer(value, kFormatKey) != kFormat || ranks == nullptr || ranks->array() == nullptr) {
    return std::nullopt;
  }
  JobRecord record{.command = text(value, "command"),
                   .exit_code = static_cast<int>(integer(value, "exit_code")),
                   .first_failed_rank = -1,
                   .sentence = text(value, "sentence"),
                   .ranks = {}};
  for (const Value& rank : *ranks->array()) {
    if (record.ranks.size() == kMostRanks) break;
    record.ranks.push_back(rank_from_json(rank));
  }
  record.memory_limit_bytes = integer(value, "memory_limit_bytes");
  record.memory_limit_name = text(value, "memory_limit_name");
  const Value* const first = value.find("first_failed_rank");
  if (first != nullptr && first->integer() != nullptr && *first->integer() >= 0 &&
      *first->integer() < std::ssize(record.ranks)) {
    record.first_failed_rank = static_cast<int>(*first->integer());
  }
  return record;
}

void clear_folder(const std::filesystem::path& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    const bool ours = name == kJobFile || (name.starts_with("rank_") && name.ends_with(".json"));
    std::error_code ignored;
    if (ours) std::filesystem::remove(entry.path(), ignored);
  }
}

int run_and_record(const launch::Plan& plan, const launch::RunOptions& options,
                   const std::filesystem::path& folder, const std::string& command) {
  clear_folder(folder);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) warn(folder, error.message());
  const launch::Result result = launch::run(plan, options);
  const std::filesystem::path path = folder / kJobFile;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << json::write(to_json(record_of(plan, command, result)), {.indent = 1}) << '\n'
       << std::flush;
  if (!file && !error) warn(path, std::generic_category().message(errno));
  return result.exit_code;
}

}  // namespace capstan::cli::doctor

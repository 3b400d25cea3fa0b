#include "capstan/engine/step_trace.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <utility>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/engine/clock_exchange.h"
#include "capstan/engine/together.h"

namespace capstan::engine {
namespace {

namespace fs = std::filesystem;

void make_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error) return;
  throw ConfigError({.what = "the folder for the timeline cannot be made: " + error.message(),
                     .where = folder,
                     .fix = "name a folder that you may write to"});
}

// Empty: it is written.
std::string write_file(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text << std::flush;
  return file ? "" : std::error_code(errno, std::generic_category()).message();
}

}  // namespace

StepTrace::StepTrace(const profile::TraceOptions& options, comm::Group& group, RunLog& log,
                     Facts facts)
    : options_(options), group_(group), log_(log), facts_(std::move(facts)) {
  together(group_, facts_.device, [&] {
    if (group_.rank() == 0) make_folder(options_.folder);
  });
}

void StepTrace::step_begins(std::int64_t steps_before) {
  if (reader_.has_value() || done_ || steps_before + 1 < options_.first_step) return;
  if (steps_before >= options_.last_step) {
    done_ = true;
    log_.say(LogLevel::warning, fmt::format("no timeline is drawn: steps {} to {} are over already",
                                            options_.first_step, options_.last_step));
    return;
  }
  offsets_us_ = clock_offsets(group_, facts_.device);
  steps_before_ = steps_before;
  reader_.emplace(group_.recorder(), profile::Kinds::all());
}

void StepTrace::step_ended(std::int64_t steps) {
  if (!reader_.has_value()) return;
  if (steps >= options_.last_step) group_.recorder()->settle();
  take();
  if (steps >= options_.last_step) finish();
}

void StepTrace::take() {
  std::vector<profile::Record> more = reader_->take();
  records_.insert(records_.end(), std::make_move_iterator(more.begin()),
                  std::make_move_iterator(more.end()));
  dropped_ += reader_->take_dropped();
}

void StepTrace::finish() {
  reader_.reset();
  done_ = true;
  profile::RankTimeline mine =
      to_timeline(std::exchange(records_, {}), group_.rank(), steps_before_, log_.owner());
  mine.place = facts_.place;
  const std::string text = to_text(mine);
  profile::Trace trace{
      .title = fmt::format("Steps {} to {}", steps_before_ + 1, options_.last_step),
      .settings = facts_.settings};
  for (int rank = 0; rank < group_.size(); ++rank) {
    const std::string theirs = text_from(group_, facts_.device, text, rank);
    if (group_.rank() > 0) continue;
    trace.ranks.push_back(profile::timeline_from(theirs));
    shift(trace.ranks.back(), offsets_us_[static_cast<std::size_t>(rank)]);
  }
  if (group_.rank() == 0) write(trace);
}

void StepTrace::write(const profile::Trace& trace) const {
  if (dropped_ > 0) {
    log_.say(LogLevel::warning,
             fmt::format("the timeline leaves out {}: more than {} came in a step",
                         counted(dropped_, "operation"), profile::Reader::kMaxRecords));
  }
  const fs::path folder(options_.folder);
  const fs::path page = folder / "timeline.html";
  for (const auto& [path, text] : {std::pair(folder / "trace.json", chrome_trace(trace)),
                                   std::pair(page, timeline_page(trace))}) {
    const std::string problem = write_file(path, text);
    if (problem.empty()) continue;
    log_.say(LogLevel::warning,
             fmt::format("the timeline was not written: {} ({})", problem, path.string()));
    return;
  }
  std::string text = fmt::format("timeline of steps {} to {}: {}\n{}", steps_before_ + 1,
                                 options_.last_step, page.string(), trace_summary(trace));
  if (text.ends_with('\n')) text.pop_back();
  log_.say(LogLevel::info, text);
}

}  // namespace capstan::engine

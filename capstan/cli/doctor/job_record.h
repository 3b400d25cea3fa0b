// How a job and each of its ranks ended: what the launcher leaves for `capstan doctor`.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "capstan/json/value.h"
#include "capstan/launch/ending.h"
#include "capstan/launch/plan.h"
#include "capstan/launch/run.h"

namespace capstan::cli::doctor {

inline constexpr const char* kFolder = "diagnosis";  // inside of a run's folder
inline constexpr const char* kJobFile = "job.json";

struct RankEnd {
  launch::Ending ending;
  double after_s = 0;  // since the start of the job
  std::vector<std::string> last_lines;
};

struct JobRecord {
  std::string command;
  int exit_code = 0;
  int first_failed_rank = -1;  // -1: no rank failed
  std::string sentence;        // what ended the job
  std::vector<RankEnd> ranks;
  // Of the host that all of them shared; 0: they did not share one.
  std::int64_t memory_limit_bytes = 0;
  std::string memory_limit_name;
};

JobRecord record_of(const launch::Plan& plan, const std::string& command,
                    const launch::Result& result);
json::Value to_json(const JobRecord& record);
// Nothing where this is not what to_json() made.
std::optional<JobRecord> record_from_json(const json::Value& value);

// Takes away what an earlier job left in the folder, if there is one.
void clear_folder(const std::filesystem::path& folder);

// launch::run() whose job leaves its record in `folder`, in place of what an earlier job left
// there. What cannot be written is said in a warning. Returns the exit code of all.
int run_and_record(const launch::Plan& plan, const launch::RunOptions& options,
                   const std::filesystem::path& folder, const std::string& command);

}  // namespace capstan::cli::doctor

// What a run left, as values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "capstan/cli/doctor/job_record.h"
#include "capstan/profile/rank_notes.h"

namespace capstan::cli::doctor {

// A line of a metrics file.
struct StepLine {
  std::int64_t step = 0;
  std::optional<double> loss;       // none: it was not finite
  std::optional<double> grad_norm;  // likewise
  bool skipped = false;
  double tokens_per_s = 0;
};

struct Evidence {
  std::optional<JobRecord> job;           // none: no launcher left one
  std::vector<profile::RankNotes> ranks;  // ascending
  std::vector<StepLine> steps;            // ascending
  std::vector<std::string> found;         // what was read, for people
  std::vector<std::string> not_read;      // what could not be, and why
};

// Reads the folder and its folder `diagnosis`, and `metrics` where it is not empty. Files that are
// cut off, empty or of another kind are listed in not_read. Throws ConfigError where there is no
// such folder, or no such metrics file.
Evidence read_evidence(const std::filesystem::path& folder, const std::filesystem::path& metrics);

}  // namespace capstan::cli::doctor

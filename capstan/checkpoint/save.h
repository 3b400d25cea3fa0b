// The two phases of a save: begin (the unfinished folder with its files, by one rank), then, after
// every rank has written its pieces, commit (index, rename, `latest`, by the same rank).
//
//   rank 0  begin_save ----- write pieces, note ------ commit_save
//   rank n       (folder) -- write pieces, note
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "capstan/checkpoint/disk.h"
#include "capstan/checkpoint/file_plan.h"
#include "capstan/checkpoint/folder.h"
#include "capstan/checkpoint/training_state.h"

namespace capstan::checkpoint {

// A file that is no tensor file: config.json, say.
struct ExtraFile {
  std::string name;
  std::string text;
};

struct SaveRequest {
  std::filesystem::path folder;
  std::string tag;
  bool latest = true;  // false: `latest` stays, and this one is never taken as the newest
  int keep_last = 0;   // after the commit only so many stay; 0: all
  TrainingState state;
  std::vector<ExtraFile> extra_files;
  // What turned out damaged when it was loaded: those of this folder are set aside first.
  std::vector<Found> damaged;
};

// The unfinished folder that begin_save() of this process makes.
std::filesystem::path partial_path(const SaveRequest& request);

// Makes the folder of the run where it is missing, removes what dead saves left, and makes the
// unfinished folder with all of the plan's files at their full size: a full disk shows here.
// Returns the unfinished folder. Throws IoError or ConfigError; nothing is left then.
std::filesystem::path begin_save(const SaveRequest& request, const FilePlan& plan, Disk& disk);
// Whether begin_save() has done so, for ranks that were not told.
bool save_has_begun(const std::filesystem::path& partial);

struct Committed {
  std::filesystem::path folder;
  std::int64_t sequence = 0;
  std::int64_t bytes = 0;
  std::vector<std::string> removed;  // tags that keep_last let go
};

// Every rank below `ranks` has left its note. Throws IoError that carries a rank's own error, or
// when the pieces do not cover every tensor; the unfinished folder is gone then, and everything
// else is as it was.
Committed commit_save(const std::filesystem::path& partial, const SaveRequest& request,
                      const FilePlan& plan, int ranks, Disk& disk);

// After a failure elsewhere.
void abandon_save(const std::filesystem::path& partial) noexcept;

}  // namespace capstan::checkpoint

// The folder that holds the checkpoints of one run: what is there, which is newest, what may go.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "capstan/checkpoint/disk.h"

namespace capstan::checkpoint {

inline constexpr const char* kLatestFile = "latest";
inline constexpr const char* kLatestUniversalFile = "latest_universal";

struct Found {
  std::string tag;
  std::filesystem::path folder;
  std::int64_t sequence = 0;
  bool latest = true;   // false: never taken as the newest
  std::string problem;  // why it is not complete; empty when it is
  bool weights = true;  // false: those are not complete either
  bool operator==(const Found&) const = default;
};

// Larger than that of every checkpoint in the folder.
std::int64_t next_sequence(const std::filesystem::path& folder);

// Throws ConfigError unless `tag` can be the name of a folder.
void check_tag(const std::string& tag);

// Everything below `folder` that is a checkpoint or was one, newest first; those whose index cannot
// be read, so that nobody knows their place, before all others. Looks at names and sizes only: for
// the bytes see verify.h. Empty when there is no such folder.
std::vector<Found> list_checkpoints(const std::filesystem::path& folder);

// One checkpoint by its own folder.
Found look_at(const std::filesystem::path& checkpoint);

// What a load without a tag takes.
struct Choice {
  Found taken;
  std::vector<Found> passed_over;  // newer, or of unknown place, and not complete
};

// Nothing where the folder holds no checkpoint. Throws IoError where it holds some that can be the
// newest and none of them is complete: beginning anew there would bury what is left of them.
// Those of `unusable` count as not complete, with the problem that they are listed with.
std::optional<Choice> choose_newest(const std::filesystem::path& folder,
                                    const std::vector<Found>& unusable = {});

// "run/global_step6 is passed over: master.safetensors is missing"
std::string passed_over_text(const Found& found);

// What `latest` says; nothing without that file.
std::optional<std::string> latest_tag(const std::filesystem::path& folder,
                                      const char* file = kLatestFile);
void write_latest(const std::filesystem::path& folder, const std::string& tag, Disk& disk);

// Gives what stands at this tag the name <tag>.set-aside, under which no load takes it and no save
// removes it. Returns that name.
std::string set_aside(const std::filesystem::path& folder, const std::string& tag, Disk& disk);

// Removes all but the newest `keep` complete checkpoints that count as latest; 0 keeps all.
// Returns the removed tags.
std::vector<std::string> prune(const std::filesystem::path& folder, int keep, Disk& disk);

}  // namespace capstan::checkpoint

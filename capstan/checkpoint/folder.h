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
  bool operator==(const Found&) const = default;
};

// Throws ConfigError unless `tag` can be the name of a folder.
void check_tag(const std::string& tag);

// Everything below `folder` that has an index, newest first. Looks at names and sizes only: for
// the bytes see verify.h. Empty when there is no such folder.
std::vector<Found> list_checkpoints(const std::filesystem::path& folder);

// Why the checkpoint in this folder is not complete; empty when it is.
std::string incomplete_because(const std::filesystem::path& checkpoint);

// Nothing when there is none.
std::optional<Found> newest_complete(const std::filesystem::path& folder);

// What `latest` says; nothing without that file.
std::optional<std::string> latest_tag(const std::filesystem::path& folder,
                                      const char* file = kLatestFile);
void write_latest(const std::filesystem::path& folder, const std::string& tag, Disk& disk);

// Removes all but the newest `keep` complete checkpoints that count as latest; 0 keeps all.
// Returns the removed tags.
std::vector<std::string> prune(const std::filesystem::path& folder, int keep, Disk& disk);

}  // namespace capstan::checkpoint

#include "capstan/checkpoint/folder.h"

#include <algorithm>
#include <system_error>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/checkpoint/file_bytes.h"
#include "capstan/checkpoint/file_name.h"
#include "capstan/checkpoint/index.h"

namespace capstan::checkpoint {
namespace {

Found look_at(const std::filesystem::path& folder) {
  Found found{.tag = folder.filename().string(), .folder = folder};
  try {
    const Index index = read_index(folder);
    found.sequence = index.sequence;
    found.latest = index.latest;
    for (const FileFact& file : index.files) {
      std::error_code error;
      const auto bytes = std::filesystem::file_size(folder / file.name, error);
      if (error) {
        found.problem = fmt::format("{} is missing", file.name);
      } else if (static_cast<std::int64_t>(bytes) != file.bytes) {
        found.problem = fmt::format("{} has {} bytes instead of {}", file.name, bytes, file.bytes);
      }
      if (!found.problem.empty()) break;
    }
  } catch (const Error& error) {
    found.problem = error.info().what;
  }
  return found;
}

}  // namespace

void check_tag(const std::string& tag) {
  if (is_plain_name(tag) && tag != kLatestFile) return;
  throw ConfigError({.what = fmt::format("'{}' cannot be a checkpoint's tag", tag),
                     .where = "tag",
                     .fix = "use a name for a folder, such as global_step100"});
}

std::vector<Found> list_checkpoints(const std::filesystem::path& folder) {
  std::vector<Found> found;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    std::error_code ignored;
    if (name.starts_with('.') || !std::filesystem::exists(at->path() / kIndexFile, ignored)) {
      continue;
    }
    found.push_back(look_at(at->path()));
  }
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    return std::pair(a.sequence, a.tag) > std::pair(b.sequence, b.tag);
  });
  return found;
}

std::string incomplete_because(const std::filesystem::path& checkpoint) {
  return look_at(checkpoint).problem;
}

std::optional<Found> newest_complete(const std::filesystem::path& folder) {
  for (Found& found : list_checkpoints(folder)) {
    if (found.latest && found.problem.empty()) return std::move(found);
  }
  return std::nullopt;
}

std::optional<std::string> latest_tag(const std::filesystem::path& folder, const char* file) {
  const std::filesystem::path path = folder / file;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  return std::string(trim(read_text_file(path)));
}

void write_latest(const std::filesystem::path& folder, const std::string& tag, Disk& disk) {
  io::write_durably(folder / kLatestFile, std::as_bytes(std::span(tag)), disk.calls);
}

std::vector<std::string> prune(const std::filesystem::path& folder, int keep, Disk& disk) {
  std::vector<std::string> removed;
  if (keep <= 0) return removed;
  int kept = 0;
  for (const Found& found : list_checkpoints(folder)) {
    if (!found.latest || !found.problem.empty() || ++kept <= keep) continue;
    // Out of sight first: what is half removed must not look like a checkpoint.
    const std::filesystem::path hidden = folder / fmt::format(".{}.removed", found.tag);
    std::error_code ignored;
    std::filesystem::remove_all(hidden, ignored);
    if (disk.calls.rename(found.folder, hidden) != 0) continue;
    std::filesystem::remove_all(hidden, ignored);
    removed.push_back(found.tag);
  }
  return removed;
}

}  // namespace capstan::checkpoint

#include "capstan/checkpoint/folder.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/checkpoint/file_bytes.h"
#include "capstan/checkpoint/file_name.h"
#include "capstan/checkpoint/file_plan.h"
#include "capstan/checkpoint/index.h"
#include "capstan/checkpoint/safetensors.h"
#include "capstan/io/failure.h"

namespace capstan::checkpoint {
namespace {

constexpr int kMostScans = 20;
constexpr std::string_view kSetAside = ".set-aside";
// Of one whose index cannot be read: it may be the newest.
constexpr std::int64_t kUnknownSequence = std::numeric_limits<std::int64_t>::max();
// Any of these tells that a folder was saved as a checkpoint, whatever is left of it.
constexpr std::array kOwnFiles = {kIndexFile, kIndexChecksumFile, "master.safetensors",
                                  "optimizer.exp_avg.safetensors"};

// Empty, or what is wrong with the file; only names and sizes are looked at.
std::string problem_of(const std::filesystem::path& folder, const FileFact& file) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(folder / file.name, error);
  if (error == std::errc::no_such_file_or_directory) return file.name + " is missing";
  if (error) return fmt::format("{} cannot be examined: {}", file.name, error.message());
  if (static_cast<std::int64_t>(bytes) == file.bytes) return "";
  return fmt::format("{} has {} bytes instead of {}", file.name, bytes, file.bytes);
}

bool holds_weights(const Index& index, const std::string& file) {
  const Column* const weights = index.find(kModelColumn);
  return weights != nullptr &&
         std::any_of(weights->tensors.begin(), weights->tensors.end(),
                     [&](const IndexTensor& tensor) { return tensor.is_in(file); });
}

// Without an index: whether Hugging Face's readers would still find weights.
bool has_readable_weights(const std::filesystem::path& folder) {
  try {
    read_safetensors(io::File::open(folder / "model.safetensors", {}));
    return true;
  } catch (const Error&) {
    return false;
  }
}

bool was_a_checkpoint(const std::filesystem::path& folder) {
  return std::any_of(kOwnFiles.begin(), kOwnFiles.end(), [&](const char* name) {
    std::error_code ignored;
    return std::filesystem::exists(folder / name, ignored);
  });
}

bool is_unusable(Found& found, const std::vector<Found>& unusable) {
  const auto known = std::find_if(unusable.begin(), unusable.end(), [&](const Found& each) {
    return each.folder == found.folder && each.sequence == found.sequence;
  });
  if (known != unusable.end()) found = *known;
  return !found.problem.empty();
}

// Nothing where a checkpoint went away meanwhile, or where `latest` says that one should be there
// and none is.
std::optional<std::vector<Found>> scan(const std::filesystem::path& folder) {
  std::vector<Found> found;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    const std::filesystem::path path = at->path();
    std::error_code gone;
    if (path.filename().string().starts_with('.') || !std::filesystem::is_directory(path, gone)) {
      continue;
    }
    if (was_a_checkpoint(path)) {
      found.push_back(look_at(path));
      // One that was just exchanged for a new one of its tag is half of each.
      if (!found.back().problem.empty()) found.back() = look_at(path);
    }
    if (!std::filesystem::exists(path, gone)) return std::nullopt;
  }
  if (found.empty() && std::filesystem::exists(folder / kLatestFile, error)) return std::nullopt;
  return found;
}

IoError none_complete(const std::filesystem::path& folder, const std::vector<Found>& damaged) {
  std::string what = "no checkpoint in this folder is complete:";
  const Found* with_weights = nullptr;
  for (const Found& each : damaged) {
    what += fmt::format("\n    {}: {}; its weights {}", each.tag, each.problem,
                        each.weights ? "are still there" : "are not complete either");
    if (with_weights == nullptr && each.weights) with_weights = &each;
  }
  std::string fix = "restore the damaged files, or use another folder to start over";
  if (with_weights != nullptr) {
    fix += fmt::format(
        "; to use the weights alone: capstan generate {0}, Hugging Face's "
        "from_pretrained(\"{0}\"), "
        "or load_checkpoint with tag \"{1}\" and load_module_only",
        with_weights->folder.string(), with_weights->tag);
  }
  return IoError({.what = std::move(what), .where = folder.string(), .fix = std::move(fix)});
}

}  // namespace

std::int64_t next_sequence(const std::filesystem::path& folder) {
  std::int64_t newest = 0;
  for (const Found& found : list_checkpoints(folder)) {
    if (found.sequence != kUnknownSequence) newest = std::max(newest, found.sequence);
  }
  return std::min(newest, kMostCounted - 1) + 1;
}

void check_tag(const std::string& tag) {
  if (is_plain_name(tag) && tag != kLatestFile) return;
  throw ConfigError({.what = fmt::format("'{}' cannot be a checkpoint's tag", tag),
                     .where = "tag",
                     .fix = "use a name for a folder, such as global_step100"});
}

Found look_at(const std::filesystem::path& checkpoint) {
  Found found{.tag = checkpoint.filename().string(), .folder = checkpoint};
  try {
    const Index index = read_index(checkpoint);
    found.sequence = index.sequence;
    found.latest = index.latest;
    if (found.tag.find(kSetAside) != std::string::npos) {
      found.problem = "a save set it aside because it was damaged or in the way";
    }
    for (const FileFact& file : index.files) {
      const std::string problem = problem_of(checkpoint, file);
      if (problem.empty()) continue;
      if (found.problem.empty()) found.problem = problem;
      if (holds_weights(index, file.name)) found.weights = false;
    }
  } catch (const Error& error) {
    found.problem = error.info().what;
    found.sequence = kUnknownSequence;
    found.weights = has_readable_weights(checkpoint);
  }
  return found;
}

std::vector<Found> list_checkpoints(const std::filesystem::path& folder) {
  // A job that saves here may remove one while we look, after it has saved another.
  std::optional<std::vector<Found>> seen;
  for (int i = 0; i < kMostScans && !seen; ++i) seen = scan(folder);
  std::vector<Found> found = std::move(seen).value_or(std::vector<Found>{});
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    return std::pair(a.sequence, a.tag) > std::pair(b.sequence, b.tag);
  });
  return found;
}

std::optional<Choice> choose_newest(const std::filesystem::path& folder,
                                    const std::vector<Found>& unusable) {
  Choice choice;
  for (Found& found : list_checkpoints(folder)) {
    if (!found.latest || found.tag.find(kSetAside) != std::string::npos) continue;
    if (!is_unusable(found, unusable)) {
      choice.taken = std::move(found);
      return choice;
    }
    choice.passed_over.push_back(std::move(found));
  }
  if (choice.passed_over.empty()) return std::nullopt;
  throw none_complete(folder, choice.passed_over);
}

std::string passed_over_text(const Found& found) {
  return fmt::format("{} is skipped: {}", found.folder.string(), found.problem);
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

std::string set_aside(const std::filesystem::path& folder, const std::string& tag, Disk& disk) {
  std::string name = fmt::format("{}{}", tag, kSetAside);
  std::error_code error;
  for (int i = 2; std::filesystem::exists(folder / name, error); ++i) {
    name = fmt::format("{}{}-{}", tag, kSetAside, i);
  }
  if (disk.calls.rename(folder / tag, folder / name) != 0) {
    throw io::io_failure({.verb = "rename to", .file = folder / name}, errno);
  }
  io::sync_folder(folder, disk.calls);
  return name;
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

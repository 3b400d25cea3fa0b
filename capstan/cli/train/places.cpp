#include "capstan/cli/train/places.h"

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/checkpoint/folder.h"
#include "capstan/checkpoint/folder_lock.h"
#include "capstan/io/failure.h"

namespace capstan::cli::train {
namespace {

void check_readable(const std::string& path, const char* option) {
  if (::access(path.c_str(), R_OK) == 0) return;
  throw IoError({.what = "cannot read it: " + io::errno_text(errno),
                 .where = path,
                 .fix = fmt::format("give {} a path that exists and can be read", option)});
}

void check_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw io::io_failure({.verb = "make folder", .file = folder}, error.value());
  if (::access(folder.c_str(), W_OK) == 0) return;
  throw io::io_failure({.verb = "write into", .file = folder / "checkpoint"}, errno);
}

bool is_same(const std::string& a, const std::string& b) {
  std::error_code missing;
  return !b.empty() && std::filesystem::equivalent(a, b, missing);
}

// A run that begins anew must not become the newest of a folder by chance: what is resumed and
// generated from, and what --keep-last removes, would no longer be what the user means.
void check_save_folder(const CheckpointArguments& given) {
  check_folder(given.save);
  const checkpoint::FolderLock nobody_else(given.save);
  const auto found = checkpoint::list_checkpoints(given.save);
  if (found.empty() || given.new_run || is_same(given.save, given.resume)) return;
  throw ConfigError(
      {.what = fmt::format("the folder already has {}, the newest is {}",
                           counted(std::ssize(found), "checkpoint"), found.front().tag),
       .where = "--save " + given.save,
       .fix = fmt::format("continue from there with --resume {}, save into another folder, or "
                          "start a new run beside them with --new-run",
                          given.save)});
}

void check_file(const std::filesystem::path& file) {
  std::error_code ignored;
  const bool existed = std::filesystem::exists(file, ignored);
  const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) throw io::io_failure({.verb = "open", .file = file}, errno);
  ::close(fd);
  if (!existed) std::filesystem::remove(file, ignored);
}

}  // namespace

void check_places(const Arguments& arguments) {
  check_readable(arguments.data.path, "--data");
  if (!arguments.data.tokenizer.empty()) check_readable(arguments.data.tokenizer, "--tokenizer");
  // Throws where there are checkpoints and none can be gone on from.
  if (!arguments.checkpoint.resume.empty()) checkpoint::choose_newest(arguments.checkpoint.resume);
  if (!arguments.checkpoint.save.empty()) check_save_folder(arguments.checkpoint);
  if (!arguments.output.curve.empty()) check_file(arguments.output.curve);
  if (!arguments.output.page.empty()) check_folder(arguments.output.page);
  const std::string metrics = metrics_path(arguments.output);
  if (!metrics.empty()) check_file(metrics);
}

}  // namespace capstan::cli::train

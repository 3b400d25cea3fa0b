#include "capstan/cli/train/places.h"

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/io/failure.h"

namespace capstan::cli::train {
namespace {

void check_readable(const std::string& path, const char* option) {
  if (::access(path.c_str(), R_OK) == 0) return;
  throw IoError({.what = "cannot read it: " + io::errno_text(errno),
                 .where = path,
                 .fix = fmt::format("give {} something that exists and may be read", option)});
}

void check_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw io::io_failure({.verb = "make folder", .file = folder}, error.value());
  if (::access(folder.c_str(), W_OK) == 0) return;
  throw io::io_failure({.verb = "write into", .file = folder / "checkpoint"}, errno);
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
  if (!arguments.checkpoint.save.empty()) check_folder(arguments.checkpoint.save);
  if (!arguments.output.curve.empty()) check_file(arguments.output.curve);
  if (!arguments.output.metrics.empty()) check_file(arguments.output.metrics);
}

}  // namespace capstan::cli::train

#include "capstan/launch/screen.h"

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <system_error>

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include "capstan/base/error.h"

namespace capstan::launch {
namespace {

// Enough for a Python traceback with its cause.
constexpr std::size_t kTailLines = 40;
constexpr std::size_t kTailLineBytes = 2000;

}  // namespace

Screen::Screen(Poller& poller, const RunOptions& options, int world_size)
    : options_(options),
      out_(poller, options.out_fd),
      err_(poller, options.err_fd),
      tails_(static_cast<std::size_t>(world_size)) {
  if (options.log_folder.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(options.log_folder, error);
  if (error || !std::filesystem::is_directory(options.log_folder, error)) {
    throw IoError({.what = fmt::format("cannot make the folder \"{}\": {}", options.log_folder,
                                       error ? error.message() : "it is a file"),
                   .where = "--enable_each_rank_log",
                   .fix = "name a folder that can be written"});
  }
  log_stamp_ = fmt::format("{:%Y%m%d%H%M%S}", fmt::localtime(std::time(nullptr)));
}

void Screen::rank_line(int rank, Stream stream, std::string_view line, char end) {
  remember(rank, stream, line);
  if (!options_.log_folder.empty()) log(rank, line);
  if (options_.on_line) {
    options_.on_line(rank, stream, line);
    return;
  }
  std::string text = options_.prefix ? fmt::format("[rank {}] ", rank) : std::string();
  text.append(line);
  text += end;
  (stream == Stream::out ? out_ : err_).add(text);
}

void Screen::note(std::string_view speaker, std::string_view line) {
  if (options_.on_line) return;
  err_.add(fmt::format("[{}] ", speaker));
  err_.add(line);
  err_.add("\n");
}

void Screen::report(std::string_view text) {
  if (!options_.on_line) err_.add(text);
}

std::vector<std::string> Screen::last_lines(int rank) const {
  const Tail& tail = tails_[static_cast<std::size_t>(rank)];
  const auto& lines = tail.lines[1].empty() ? tail.lines[0] : tail.lines[1];
  return {lines.begin(), lines.end()};
}

void Screen::remember(int rank, Stream stream, std::string_view line) {
  auto& lines = tails_[static_cast<std::size_t>(rank)].lines[stream == Stream::out ? 0 : 1];
  lines.emplace_back(line.substr(0, kTailLineBytes));
  if (lines.size() > kTailLines) lines.pop_front();
}

void Screen::log(int rank, std::string_view line) {
  Fd& file = log_files_[rank];
  if (!file.is_open()) {
    const std::string path = fmt::format("{}/{}_rank{}.log", options_.log_folder, log_stamp_, rank);
    file = Fd(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  }
  const std::string text = std::string(line) + "\n";
  if (!file.is_open() ||
      ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    throw IoError(
        {.what = fmt::format("cannot write the log of rank {}: {}", rank, std::strerror(errno)),
         .where = options_.log_folder,
         .fix = "free space on that disk, or leave --enable_each_rank_log out"});
  }
}

}  // namespace capstan::launch

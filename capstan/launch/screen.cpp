#include "capstan/launch/screen.h"

#include <algorithm>
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
  if (stream == Stream::err && errors_.hold(rank, line, end)) return;
  show(rank, stream, line, end);
}

void Screen::show(int rank, Stream stream, std::string_view line, char end) {
  if (stream == Stream::err) {
    if (!last_speakers_.contains(rank)) {
      last_speakers_ = {rank};
      spoken_lines_ = 0;
    }
    ++spoken_lines_;
  }
  if (options_.prefix) line = without_own_rank(rank, line);
  std::string text = options_.prefix ? fmt::format("[rank {}] ", rank) : std::string();
  text.append(line);
  text += end;
  (stream == Stream::out ? out_ : err_).add(text);
}

bool Screen::release(int rank) {
  const SharedErrors::Error error = errors_.release(rank);
  tails_[static_cast<std::size_t>(rank)].error_lines = error.lines.size();
  if (error.same_as >= 0) {
    if (last_speakers_.contains(error.same_as)) last_speakers_.insert(rank);
    return false;
  }
  for (const SharedErrors::Line& line : error.lines) show(rank, Stream::err, line.text, line.end);
  return true;
}

void Screen::rank_ended(int rank) {
  if (!release(rank)) repeated_.insert(rank);
}

void Screen::finish() {
  for (const int rank : errors_.held()) rank_ended(rank);
}

void Screen::tick() {
  for (const int rank : errors_.due()) {
    const bool is_new = release(rank);
    tails_[static_cast<std::size_t>(rank)].error_lines = 0;  // more may come
    if (!is_new) show(rank, Stream::err, "says the same as another rank before", '\n');
  }
}

void Screen::note(std::string_view speaker, std::string_view line) {
  if (options_.on_line) return;
  last_speakers_.clear();
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
  const std::size_t count = tail.error_lines > 0 ? tail.error_lines : lines.size();
  return {lines.end() - static_cast<std::ptrdiff_t>(std::min(count, lines.size())), lines.end()};
}

void Screen::remember(int rank, Stream stream, std::string_view line) {
  auto& lines = tails_[static_cast<std::size_t>(rank)].lines[stream == Stream::out ? 0 : 1];
  lines.emplace_back(without_own_rank(rank, line).substr(0, kTailLineBytes));
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

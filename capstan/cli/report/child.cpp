#include "capstan/cli/report/child.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"

namespace capstan::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct Pipe {
  int read_end = -1;
  int write_end = -1;

  Pipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
      throw IoError({.what = fmt::format("cannot create a pipe: {}", std::strerror(errno)),
                     .where = "starting a child process",
                     .fix = "raise the number of open files (ulimit -n)"});
    }
    read_end = ends[0];
    write_end = ends[1];
  }
  ~Pipe() {
    close_write_end();
    ::close(read_end);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  void close_write_end() {
    if (write_end >= 0) ::close(std::exchange(write_end, -1));
  }
};

std::vector<char*> as_c_array(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

// A process group of its own, so that a time-out also ends what the child started.
int spawn(std::vector<std::string> argv, const launch::Environment& env, const Pipe& out,
          const Pipe& err, pid_t& child) {
  std::vector<std::string> variables;
  variables.reserve(env.size());
  for (const auto& [name, value] : env) variables.push_back(fmt::format("{}={}", name, value));
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out.write_end, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err.write_end, STDERR_FILENO);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  const int error = ::posix_spawn(&child, argv[0].c_str(), &actions, &attributes,
                                  as_c_array(argv).data(), as_c_array(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return error;
}

// Appends what is there; false at the end of the stream.
bool read_some(int fd, std::string& text) {
  std::array<char, 4096> buffer{};
  const ssize_t count = ::read(fd, buffer.data(), buffer.size());
  if (count > 0) text.append(buffer.data(), static_cast<std::size_t>(count));
  return count > 0 || (count < 0 && (errno == EINTR || errno == EAGAIN));
}

// Reads both streams until they end; false when time ran out first.
bool read_until(Clock::time_point deadline, const Pipe& out, const Pipe& err, ChildResult& result) {
  std::array<pollfd, 2> fds = {pollfd{out.read_end, POLLIN, 0}, pollfd{err.read_end, POLLIN, 0}};
  while (fds[0].fd >= 0 || fds[1].fd >= 0) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return false;
    if (::poll(fds.data(), fds.size(), static_cast<int>(left.count())) < 0) continue;
    if (fds[0].revents != 0 && !read_some(fds[0].fd, result.out)) fds[0].fd = -1;
    if (fds[1].revents != 0 && !read_some(fds[1].fd, result.err)) fds[1].fd = -1;
  }
  return true;
}

int wait_for_end(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

ChildResult run_child(const std::vector<std::string>& argv, const launch::Environment& env,
                      std::chrono::milliseconds limit) {
  ChildResult result;
  Pipe out;
  Pipe err;
  pid_t child = -1;
  const int error = spawn(argv, env, out, err, child);
  if (error != 0) {
    result.exit_code = 127;
    result.err = fmt::format("cannot start {}: {}", argv[0], std::strerror(error));
    return result;
  }
  out.close_write_end();
  err.close_write_end();
  if (!read_until(Clock::now() + limit, out, err, result)) {
    result.timed_out = true;
    // First a chance for mpirun to end its ranks, which live in groups of their own.
    ::kill(-child, SIGTERM);
    read_until(Clock::now() + std::chrono::seconds(1), out, err, result);
    ::kill(-child, SIGKILL);
  }
  result.exit_code = wait_for_end(child);
  return result;
}

std::string last_words(const ChildResult& result) {
  if (result.timed_out) return "no answer in time";
  for (const std::string* text : {&result.err, &result.out}) {
    const std::vector<std::string> lines = split(*text, '\n');
    for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
      // Open MPI frames its messages with rows of dashes.
      if (trim(*line).find_first_not_of('-') != std::string_view::npos) {
        return std::string(trim(*line));
      }
    }
  }
  return fmt::format("exit code {} without a message", result.exit_code);
}

}  // namespace capstan::cli

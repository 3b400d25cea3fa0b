#include "capstan/launch/process_set.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include <dirent.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "capstan/launch/wire.h"

namespace capstan::launch {
namespace {

// A daemon of MPI's ends a moment after its ranks: what goes by itself so soon was not left behind.
constexpr std::chrono::milliseconds kOwnEnd{500};
constexpr std::chrono::milliseconds kLookEvery{5};

void reap_all() {
  while (waitpid(-1, nullptr, WNOHANG) > 0) {
  }
}

std::set<pid_t> children_of_this_process() {
  std::set<pid_t> children;
  std::ifstream listed(fmt::format("/proc/self/task/{}/children", getpid()));
  if (listed) {
    for (pid_t pid = 0; listed >> pid;) children.insert(pid);
    return children;
  }
  // A kernel without that file: the parent is the second field after the name in parentheses.
  DIR* folder = opendir("/proc");
  if (folder == nullptr) return children;
  while (const dirent* entry = readdir(folder)) {
    std::ifstream stat(fmt::format("/proc/{}/stat", entry->d_name));
    std::string text;
    std::getline(stat, text);
    const std::size_t name_end = text.rfind(')');
    if (name_end == std::string::npos || name_end + 4 >= text.size()) continue;
    std::istringstream own(text);
    std::istringstream after_state(text.substr(name_end + 4));
    pid_t pid = 0;
    pid_t parent = 0;
    if (own >> pid && after_state >> parent && parent == getpid()) children.insert(pid);
  }
  closedir(folder);
  return children;
}

}  // namespace

ProcessSet::ProcessSet(Poller& poller, SignalWatch& signals, ProcessEvents& events)
    : poller_(poller), signals_(signals), events_(events), strangers_(children_of_this_process()) {
  prctl(PR_GET_CHILD_SUBREAPER, &was_subreaper_);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

ProcessSet::~ProcessSet() {
  for (const auto& entry : entries_) {
    if (!entry->ended) kill(-entry->child.pid, SIGKILL);
    for (const int fd : {entry->child.output.get(), entry->child.error.get()}) {
      if (fd >= 0) poller_.unwatch_readable(fd);
    }
  }
  for (const auto& entry : entries_) {
    if (!entry->ended) waitpid(entry->child.pid, nullptr, 0);
  }
  prctl(PR_SET_CHILD_SUBREAPER, was_subreaper_);
}

std::size_t ProcessSet::start(const Process& process) {
  auto entry = std::make_unique<Entry>(split_at_return_, process.channel == Channel::agent_on_pipe
                                                             ? kMaxMessageBytes
                                                             : LineSplitter::kMaxLineBytes);
  entry->child = start_child(process, signals_.original_mask(), guard_);
  if (entry->child.input.is_open()) {
    entry->to_input = std::make_unique<OutputQueue>(poller_, entry->child.input.get());
  }
  entries_.push_back(std::move(entry));
  watch(entries_.size() - 1);
  return entries_.size() - 1;
}

void ProcessSet::send(std::size_t index, std::string_view bytes) {
  Entry& entry = *entries_[index];
  if (entry.to_input) entry.to_input->add(bytes);
}

void ProcessSet::close_input(std::size_t index) {
  Entry& entry = *entries_[index];
  entry.to_input.reset();
  entry.child.input.reset();
}

std::size_t ProcessSet::alive() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(entries_, [](const auto& entry) { return !entry->ended; }));
}

void ProcessSet::watch(std::size_t index) {
  const Child& child = entries_[index]->child;
  if (child.output.is_open()) {
    poller_.watch_readable(child.output.get(), [=, this] { read_some(index, Stream::out); });
  }
  if (child.error.is_open()) {
    poller_.watch_readable(child.error.get(), [=, this] { read_some(index, Stream::err); });
  }
}

void ProcessSet::pause_output(bool pause) {
  if (pause == paused_) return;
  paused_ = pause;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (!pause) watch(i);
    for (const int fd : {entries_[i]->child.output.get(), entries_[i]->child.error.get()}) {
      if (pause && fd >= 0) poller_.unwatch_readable(fd);
    }
  }
}

bool ProcessSet::read_some(std::size_t index, Stream stream) {
  Entry& entry = *entries_[index];
  Fd& fd = stream == Stream::out ? entry.child.output : entry.child.error;
  LineSplitter& splitter = stream == Stream::out ? entry.out : entry.err;
  if (!fd.is_open()) return false;
  const auto emit = [&](std::string_view line, char end) {
    events_.on_output(index, stream, line, end);
  };
  std::array<char, 64 << 10> buffer;  // NOLINT: filled by read()
  const ssize_t got = ::read(fd.get(), buffer.data(), buffer.size());
  if (got > 0) {
    splitter.feed({buffer.data(), static_cast<std::size_t>(got)}, emit);
    return true;
  }
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return errno == EINTR;
  poller_.unwatch_readable(fd.get());
  fd.reset();
  splitter.finish(emit);
  return false;
}

void ProcessSet::drain(std::size_t index) {
  for (const Stream stream : {Stream::out, Stream::err}) {
    while (read_some(index, stream)) {
    }
  }
}

void ProcessSet::signal_all(int number) {
  for (const auto& entry : entries_) {
    // Not yet reaped, so the number still means this group and no other.
    if (!entry->ended) kill(-entry->child.pid, number);
  }
  for (const pid_t pid : adopted()) kill(pid, number);
}

void ProcessSet::stop(int number, std::chrono::milliseconds grace) {
  const Clock::time_point now = Clock::now();
  signal_all(number);
  due_.clear();
  if (number == SIGKILL) return;
  if (number != SIGTERM) due_.push_back({now + grace / 2, SIGTERM});
  due_.push_back({now + grace, SIGKILL});
}

void ProcessSet::tick() {
  while (!due_.empty() && due_.front().at <= Clock::now()) {
    signal_all(due_.front().number);
    due_.erase(due_.begin());
  }
}

std::optional<ProcessSet::Clock::time_point> ProcessSet::next_due() const {
  if (due_.empty()) return {};
  return due_.front().at;
}

void ProcessSet::reap() {
  int status = 0;
  rusage usage{};
  // Ends that are noticed together: deaths by signal first, because a rank that was killed is the
  // cause, and its peers' exits with an error are the consequence.
  struct End {
    std::size_t index;
    int status;
    std::int64_t peak_rss_bytes;
  };
  std::vector<End> ends;
  for (pid_t pid = 0; (pid = wait4(-1, &status, WNOHANG, &usage)) > 0;) {
    const auto found = std::ranges::find_if(
        entries_, [&](const auto& entry) { return entry->child.pid == pid && !entry->ended; });
    if (found == entries_.end()) continue;  // an orphan of ours
    ends.push_back({static_cast<std::size_t>(found - entries_.begin()), status,
                    std::int64_t{usage.ru_maxrss} * 1024});
  }
  for (const bool by_signal : {true, false}) {
    for (const End& end : ends) {
      if (WIFSIGNALED(end.status) == by_signal) {
        handle_end(end.index, end.status, end.peak_rss_bytes);
      }
    }
  }
}

void ProcessSet::handle_end(std::size_t index, int status, std::int64_t peak_rss_bytes) {
  Entry& entry = *entries_[index];
  entry.ended = true;
  guard_.remove(entry.child.pid);
  drain(index);
  entry.to_input.reset();
  entry.child.input.reset();
  Ending ending = ending_from_status(status);
  ending.peak_rss_bytes = peak_rss_bytes;
  if (ending.signal == SIGKILL) {
    ending.out_of_memory = memory_.has_killed();
    const MemoryLimit limit = host_memory_limit();
    ending.memory_limit_bytes = limit.bytes;
    ending.memory_limit_name = limit.name;
  }
  events_.on_exit(index, ending);
}

std::vector<pid_t> ProcessSet::adopted() const {
  std::vector<pid_t> orphans;
  for (const pid_t pid : children_of_this_process()) {
    const bool known = std::ranges::any_of(
        entries_, [&](const auto& entry) { return entry->child.pid == pid && !entry->ended; });
    if (!known && pid != guard_.pid() && !strangers_.contains(pid)) orphans.push_back(pid);
  }
  return orphans;
}

int ProcessSet::finish(std::chrono::milliseconds grace) {
  std::set<pid_t> stopped;
  const Clock::time_point began = Clock::now();
  const Clock::time_point deadline = began + grace;
  reap_all();
  while (Clock::now() < began + kOwnEnd && !adopted().empty()) {
    std::this_thread::sleep_for(kLookEvery);
    reap_all();
  }
  // Each round kills orphans; their own children then become ours and fall in the next round.
  for (std::vector<pid_t> orphans = adopted(); !orphans.empty(); orphans = adopted()) {
    const bool late = Clock::now() >= deadline;
    for (const pid_t pid : orphans) {
      const bool is_new = stopped.insert(pid).second;
      if (late) {
        kill(pid, SIGKILL);
      } else if (is_new) {
        kill(pid, SIGTERM);
      }
    }
    std::this_thread::sleep_for(kLookEvery);
    reap_all();
  }
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    drain(i);
    Entry& entry = *entries_[i];
    for (Fd* fd : {&entry.child.output, &entry.child.error}) {
      if (!fd->is_open()) continue;
      poller_.unwatch_readable(fd->get());
      fd->reset();
    }
    for (const Stream stream : {Stream::out, Stream::err}) {
      (stream == Stream::out ? entry.out : entry.err).finish([&](std::string_view line, char end) {
        events_.on_output(i, stream, line, end);
      });
    }
  }
  return static_cast<int>(stopped.size());
}

}  // namespace capstan::launch

// The processes that one launcher or agent started: their output, their ends, and their stopping.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "capstan/launch/child.h"
#include "capstan/launch/ending.h"
#include "capstan/launch/guard.h"
#include "capstan/launch/line_splitter.h"
#include "capstan/launch/memory_watch.h"
#include "capstan/launch/output_queue.h"
#include "capstan/launch/poller.h"
#include "capstan/launch/signal_watch.h"

namespace capstan::launch {

enum class Stream { out, err };

class ProcessEvents {
 public:
  virtual ~ProcessEvents() = default;
  virtual void on_output(std::size_t index, Stream stream, std::string_view line, char end) = 0;
  // After the last line that was in the process's pipes when it ended.
  virtual void on_exit(std::size_t index, const Ending& ending) = 0;
};

// Owns:    the children, their pipes, and every process they leave behind: this process becomes the
//          parent of orphans among its descendants while the set lives.
// Threads: the program's only one.
// Reaps every child of this process. Children that were there before are left alone.
class ProcessSet {
 public:
  using Clock = std::chrono::steady_clock;

  // All three must outlive this.
  ProcessSet(Poller& poller, SignalWatch& signals, ProcessEvents& events);
  ProcessSet(const ProcessSet&) = delete;
  ProcessSet& operator=(const ProcessSet&) = delete;
  ~ProcessSet();  // kills what is still there

  // Of processes that are started from here on: see LineSplitter.
  void split_at_return(bool split) { split_at_return_ = split; }
  std::size_t start(const Process& process);             // its index; throws IoError
  void send(std::size_t index, std::string_view bytes);  // to an agent on a pipe
  void close_input(std::size_t index);

  std::size_t alive() const;
  bool is_alive(std::size_t index) const { return !entries_[index]->ended; }
  void signal_all(int number);

  // Sends `number` now, SIGTERM after half of `grace` where that is something else, and SIGKILL
  // after `grace`. A second call only brings the end nearer.
  void stop(int number, std::chrono::milliseconds grace);

  void pause_output(bool pause);
  void reap();  // on SIGCHLD
  void tick();  // carries out what is due
  std::optional<Clock::time_point> next_due() const;

  // After all have ended: stops processes that they left behind and that do not end by themselves
  // (SIGTERM, then SIGKILL after at most `grace`), hands on the last output, and says how many were
  // stopped.
  int finish(std::chrono::milliseconds grace);

 private:
  struct Entry {
    Entry(bool split_at_return, std::size_t max_out_bytes)
        : out(split_at_return, max_out_bytes), err(split_at_return) {}
    Child child;
    LineSplitter out;
    LineSplitter err;
    std::unique_ptr<OutputQueue> to_input;
    bool ended = false;
  };
  struct Due {
    Clock::time_point at;
    int number;
  };

  void watch(std::size_t index);
  bool read_some(std::size_t index, Stream stream);  // false: nothing more for the moment
  void drain(std::size_t index);
  void handle_end(std::size_t index, int status, std::int64_t peak_rss_bytes);
  std::vector<pid_t> adopted() const;  // orphans of our descendants

  Poller& poller_;
  SignalWatch& signals_;
  ProcessEvents& events_;
  bool split_at_return_ = false;
  bool paused_ = false;
  int was_subreaper_ = 0;
  std::set<pid_t> strangers_;  // children from before
  Guard guard_;
  MemoryWatch memory_;
  std::vector<std::unique_ptr<Entry>> entries_;
  std::vector<Due> due_;
};

}  // namespace capstan::launch

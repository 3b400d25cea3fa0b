// What the user sees of a job: whole lines with the rank before them, on two streams and in files.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/launch/output_queue.h"
#include "capstan/launch/run.h"

namespace capstan::launch {

// Threads: one. `options` and `poller` must outlive this.
class Screen {
 public:
  // Throws IoError when the log folder cannot be made.
  Screen(Poller& poller, const RunOptions& options, int world_size);

  void rank_line(int rank, Stream stream, std::string_view line, char end);
  void note(std::string_view speaker,
            std::string_view line);    // "[ssh node1] …", on the error stream
  void report(std::string_view text);  // as it is, on the error stream

  // The last error lines of a rank; of its plain output where it printed no errors.
  std::vector<std::string> last_lines(int rank) const;

  bool is_full() const { return out_.is_full() || err_.is_full(); }
  bool is_empty() const { return out_.is_empty() && err_.is_empty(); }
  bool is_broken() const { return out_.is_broken(); }
  int error() const { return out_.error(); }  // see OutputQueue

 private:
  struct Tail {
    std::deque<std::string> lines[2];  // by stream
  };
  void remember(int rank, Stream stream, std::string_view line);
  void log(int rank, std::string_view line);

  const RunOptions& options_;
  OutputQueue out_;
  OutputQueue err_;
  std::vector<Tail> tails_;      // by rank
  std::string log_stamp_;        // start of each log file's name
  std::map<int, Fd> log_files_;  // by rank, opened at the first line
};

}  // namespace capstan::launch

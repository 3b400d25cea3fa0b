// What the user sees of a job: whole lines with the rank before them, on two streams and in files.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/launch/output_queue.h"
#include "capstan/launch/run.h"
#include "capstan/launch/shared_errors.h"

namespace capstan::launch {

// Threads: one. `options` and `poller` must outlive this.
class Screen {
 public:
  // Throws IoError when the log folder cannot be made.
  Screen(Poller& poller, const RunOptions& options, int world_size);
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;
  ~Screen() { finish(); }

  void rank_line(int rank, Stream stream, std::string_view line, char end);
  void note(std::string_view speaker,
            std::string_view line);    // "[ssh node1] …", on the error stream
  void report(std::string_view text);  // as it is, on the error stream

  // Errors are held back until it is known whether several ranks say the same: until the rank has
  // ended, or the moment has come that next_due() tells.
  void rank_ended(int rank);
  void tick();
  void finish();  // all ranks have ended
  std::optional<SharedErrors::Clock::time_point> next_due() const { return errors_.next_due(); }
  int said_the_same() const { return static_cast<int>(repeated_.size()); }  // ranks not shown

  // The error that a rank ended with; else its last error lines; else those of its plain output.
  std::vector<std::string> last_lines(int rank) const;
  // Whether the last `lines` that were written to the error stream are that rank's words.
  bool still_shows(int rank, std::size_t lines) const {
    return last_speakers_.contains(rank) && spoken_lines_ >= lines;
  }

  bool is_full() const { return out_.is_full() || err_.is_full(); }
  bool is_empty() const { return out_.is_empty() && err_.is_empty(); }
  bool is_broken() const { return out_.is_broken(); }
  int error() const { return out_.error(); }  // see OutputQueue

 private:
  struct Tail {
    std::deque<std::string> lines[2];  // by stream
    std::size_t error_lines = 0;       // the last ones of the error stream: what it ended with
  };
  void show(int rank, Stream stream, std::string_view line, char end);
  bool release(int rank);  // false: another rank has said the same
  void remember(int rank, Stream stream, std::string_view line);
  void log(int rank, std::string_view line);

  const RunOptions& options_;
  OutputQueue out_;
  OutputQueue err_;
  std::vector<Tail> tails_;  // by rank
  SharedErrors errors_;
  std::set<int> repeated_;       // ranks that ended with an error that another had told
  std::set<int> last_speakers_;  // whose words the end of the error stream is
  std::size_t spoken_lines_ = 0;
  std::string log_stamp_;        // start of each log file's name
  std::map<int, Fd> log_files_;  // by rank, opened at the first line
};

}  // namespace capstan::launch

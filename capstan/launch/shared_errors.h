// Errors that several ranks say in the same words, so that they can be told once.
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace capstan::launch {

// A line as its rank wrote it, without the "[rank3]: " that PyTorch puts before those of a
// traceback.
std::string_view without_own_rank(int rank, std::string_view line);

// Holds an error back from its first line (a Python traceback, a "capstan: error: …") until its
// rank has ended or a moment has passed: only then its last line is known, and whether another rank
// has said the same. Threads: one.
class SharedErrors {
 public:
  using Clock = std::chrono::steady_clock;

  struct Line {
    std::string text;
    char end;
  };
  struct Error {
    std::vector<Line> lines;  // empty: nothing was held
    int same_as = -1;         // the rank that said it before; -1: nobody did
  };

  // Of a rank's error stream. True: it begins or continues an error, and is kept here.
  bool hold(int rank, std::string_view line, char end);
  Error release(int rank);

  // When a rank that goes on must be released, and which.
  std::optional<Clock::time_point> next_due() const;
  std::vector<int> due() const;
  std::vector<int> held() const;

 private:
  struct Held {
    std::vector<Line> lines;
    Clock::time_point until;
  };
  struct Told {
    int rank;
    std::string text;
  };

  std::map<int, Held> held_;  // by rank
  std::deque<Told> told_;     // the latest ones
};

}  // namespace capstan::launch

// Runs a program to its end with its output captured, within a time limit.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "capstan/launch/environment.h"

namespace capstan::cli {

struct ChildResult {
  std::string out;         // standard output
  std::string err;         // standard error
  int exit_code = -1;      // 128 + signal number when a signal ended it
  bool timed_out = false;  // and was killed for it, with everything it had started

  bool succeeded() const { return exit_code == 0 && !timed_out; }
};

// argv[0] is a path. A program that cannot be started at all has exit code 127 and says why in err.
[[nodiscard]] ChildResult run_child(const std::vector<std::string>& argv,
                                    const launch::Environment& env,
                                    std::chrono::milliseconds limit);

// The last line that says something, for a one-line report of a failure.
[[nodiscard]] std::string last_words(const ChildResult& result);

}  // namespace capstan::cli

// Carries out a plan: starts its processes, shows their output, and answers for all of them.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/launch/ending.h"
#include "capstan/launch/plan.h"
#include "capstan/launch/process_set.h"
#include "capstan/launch/signal_watch.h"

namespace capstan::launch {

struct RunOptions {
  int out_fd = 1;          // lines that ranks print
  int err_fd = 2;          // lines that ranks print as errors, and the closing report
  bool prefix = true;      // "[rank 3] " before each line
  std::string log_folder;  // not empty: also one file per rank here
  // When set, lines come here and nothing is written to the two descriptors.
  std::function<void(int rank, Stream stream, std::string_view line)> on_line;
  // When set, it is asked ten times a second; once it says true, the job is stopped.
  std::function<bool()> enough;
  // For who runs several jobs and wants to hear of signals between them too; it outlives the job.
  // Null: signals are held back while the job runs.
  SignalWatch* signals = nullptr;
};

struct Result {
  int exit_code = 0;                    // the first failing rank's; 128 + signal where one ended it
  int first_failed_rank = -1;           // -1: no rank failed
  int stopped_by = 0;                   // the signal to this process that stopped the job; 0: none
  std::string sentence;                 // what ended the job; empty when every rank exited with 0
  std::vector<std::string> last_lines;  // of the rank that failed first
  std::vector<Ending> endings;          // by rank
  std::vector<std::chrono::milliseconds> ended_after;    // by rank: since the start of the job
  std::vector<std::vector<std::string>> lines_of_ranks;  // by rank: as last_lines
};

// Returns when every rank has ended and no process is left behind. The first failure stops all
// others. SIGINT, SIGTERM and SIGHUP to this process stop the job; a second one at once; SIGUSR1
// and SIGUSR2 are passed on to the ranks.
// Throws IoError when a process cannot be started; then none is left running.
// Threads: the program's only one. Reaps all children of this process.
Result run(const Plan& plan, const RunOptions& options);

}  // namespace capstan::launch

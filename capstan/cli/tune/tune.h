// Finds a fast configuration by short trials of a job, and writes it down.
#pragma once

#include <string>

#include "capstan/cli/launch_flags.h"

namespace capstan::cli::tune {

struct Request {
  LaunchFlags& launch;  // outlives the search
  bool run = false;     // then start the job with the best configuration
  std::string config;   // which word of the job is its configuration; empty: the usual flags say
  bool full = false;    // as "fast": false
  std::string machine;  // predictions for it order the trials; empty: none
  int trials = 0;       // most; 0: as the configuration says
  double limit_seconds = 0;  // of a trial; 0: see tune.cpp
  bool overwrite = false;
};

// The exit code. Throws ConfigError and IoError where no trial can be started.
int tune(const Request& request);

}  // namespace capstan::cli::tune

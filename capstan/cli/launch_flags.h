// The flags of `capstan launch`, and what they start: `capstan tune` starts its trials with the
// same.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "capstan/launch/options.h"

namespace capstan::cli {

struct LaunchFlags {
  launch::Options options;
  std::string hostfile;
  std::string env_file;
  std::string launcher_args;
  double grace_seconds = 15;
  bool no_python = false;
  bool no_local_rank = false;
  bool no_prefix = false;
  bool no_ssh = false;
  bool save_pid = false;
  bool dry_run = false;
  bool quiet = false;
  std::string log_folder;
  std::string run_folder;  // what `capstan doctor` reads goes here
};

// CLI11 does not show what a command leaves to the program that it starts.
class LaunchHelp final : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App* /*app*/, std::string name) const override {
    return "Usage: " + name + " [OPTIONS] SCRIPT [ARGUMENTS...]\n";
  }
};

// Where and how ranks are started; `flags` must outlive `command`.
void add_place_flags(CLI::App& command, LaunchFlags& flags);
void add_rank_flags(CLI::App& command, LaunchFlags& flags);

// The first word is no flag. Throws ConfigError that says what to do instead.
void take_program(const std::vector<std::string>& words, const CLI::App& command,
                  launch::Program& program);

std::chrono::milliseconds to_grace(double seconds);

// Reads the files that flags name, into flags.options. Throws ConfigError.
void complete_options(LaunchFlags& flags);

// Starts the program; its exit code.
int run_launch(LaunchFlags& flags);

// The standard descriptors must be there: else a pipe to a rank would take the number of one.
void open_missing_standard_files();

}  // namespace capstan::cli

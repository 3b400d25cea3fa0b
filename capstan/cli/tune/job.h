// The job that is tuned: a script, or our own training. It says which configuration it has, and how
// it is started with another one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "capstan/cli/launch_flags.h"
#include "capstan/config/resolve.h"
#include "capstan/json/reader.h"
#include "capstan/tune/search.h"
#include "capstan/tune/search_settings.h"

namespace capstan::cli::tune {

// A configuration in a file, and what it holds.
struct ConfigFile {
  std::string path;
  const json::Value& value;
};

class Job {
 public:
  virtual ~Job() = default;

  virtual json::Document config() const = 0;
  // `config`: a file's name or JSON text. Throws ConfigError with all that is wrong with it.
  virtual config::Resolved resolve(const std::string& config) const = 0;
  virtual capstan::tune::SpaceFacts facts() const = 0;
  virtual std::int64_t tokens_per_sample() const = 0;  // 0: unknown

  // What is expected of each combination on that machine (a name or a file, see
  // capstan/tune/machine.h). Throws ConfigError where that cannot be known.
  // `config` is what the space changes; both must outlive the function.
  virtual capstan::tune::Predict predict(const std::string& machine,
                                         const capstan::tune::Space& space,
                                         const json::Value& config) const = 0;

  // What a trial starts, which needs no step after `last_step`.
  virtual launch::Options trial(const ConfigFile& config, std::int64_t last_step) const = 0;
  // The real job with that configuration: for people, and for real. start() may not return.
  virtual std::vector<std::string> command(const ConfigFile& config) const = 0;
  virtual int start(const ConfigFile& config) = 0;
};

// The words after the flags, the program first: `train` is our own training, all else a script.
// `config` says which of the words is the configuration; empty: the usual flags do. `flags` must
// outlive the job. Throws ConfigError where there is no configuration.
std::unique_ptr<Job> make_job(LaunchFlags& flags, const std::string& config);

// Words of a command line, changed. A flag's value stands behind it or behind "=".
// Gives `flag` the value; adds both where it is not there.
void set_flag(std::vector<std::string>& words, const std::string& flag, const std::string& value);
// Takes the flag out, with its value.
void drop_flag(std::vector<std::string>& words, const std::string& flag);

std::unique_ptr<Job> make_script_job(LaunchFlags& flags, const std::string& config);
std::unique_ptr<Job> make_training_job(LaunchFlags& flags);

}  // namespace capstan::cli::tune

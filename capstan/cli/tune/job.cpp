#include "capstan/cli/tune/job.h"

#include <algorithm>
#include <filesystem>

#include "capstan/base/error.h"

namespace capstan::cli::tune {
namespace {

// Its value, if it stands in the same word.
std::size_t find_flag(const std::vector<std::string>& words, const std::string& flag) {
  const auto found = std::find_if(words.begin(), words.end(), [&](const std::string& word) {
    return word == flag || word.starts_with(flag + "=");
  });
  return static_cast<std::size_t>(found - words.begin());
}

}  // namespace

void set_flag(std::vector<std::string>& words, const std::string& flag, const std::string& value) {
  drop_flag(words, flag);
  words.push_back(flag);
  words.push_back(value);
}

void drop_flag(std::vector<std::string>& words, const std::string& flag) {
  for (std::size_t at = 0; (at = find_flag(words, flag)) < words.size();) {
    const auto first = words.begin() + static_cast<std::ptrdiff_t>(at);
    const bool two = *first == flag && at + 1 < words.size();
    words.erase(first, first + (two ? 2 : 1));
  }
}

std::unique_ptr<Job> make_job(LaunchFlags& flags, const std::string& config) {
  complete_options(flags);
  const std::vector<std::string>& words = flags.options.program.words;
  if (words.empty()) {
    throw ConfigError({.what = "there is nothing to tune",
                       .where = "capstan tune",
                       .fix = "name a script with its arguments, or train with those of "
                              "`capstan train`"});
  }
  std::error_code missing;
  const bool own = words.front() == "train" && !flags.no_python && !flags.options.program.module &&
                   !std::filesystem::is_regular_file("train", missing);
  return own ? make_training_job(flags) : make_script_job(flags, config);
}

}  // namespace capstan::cli::tune

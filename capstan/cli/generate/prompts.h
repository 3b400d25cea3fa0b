// The prompts of a run: words of the command line, or the lines of a file or of stdin.
#pragma once

#include <string>
#include <vector>

#include "capstan/cli/generate/arguments.h"

namespace capstan::cli::generate {

// True where they come from stdin, which only the process that the user started has.
bool reads_stdin(const Arguments& arguments);

// Throws IoError when the file cannot be read, ConfigError when there is no prompt in it.
std::vector<std::string> read_prompts(const Arguments& arguments);

}  // namespace capstan::cli::generate

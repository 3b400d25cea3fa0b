#include "capstan/cli/generate/prompts.h"

#include <cerrno>
#include <fstream>
#include <iostream>
#include <system_error>

#include "capstan/base/error.h"
#include "capstan/base/shown_path.h"

namespace capstan::cli::generate {

bool reads_stdin(const Arguments& arguments) {
  return arguments.prompts.empty() && arguments.prompt_file == "-";
}

std::vector<std::string> read_prompts(const Arguments& arguments) {
  if (!arguments.prompts.empty()) return arguments.prompts;
  std::ifstream file;
  if (!reads_stdin(arguments)) {
    file.open(arguments.prompt_file);
    if (!file) {
      throw IoError({.what = "cannot read the prompts: " + std::generic_category().message(errno),
                     .where = arguments.prompt_file,
                     .fix = "name a file with one prompt per line, or - for stdin"});
    }
  }
  std::istream& lines = reads_stdin(arguments) ? std::cin : file;
  std::vector<std::string> prompts;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) prompts.push_back(line);
  }
  if (!prompts.empty()) return prompts;
  throw ConfigError(
      {.what = "there is no prompt",
       .where = reads_stdin(arguments) ? "stdin" : shown_path(arguments.prompt_file),
       .fix = "give prompts after the model's folder, or one per line on stdin or in the file "
              "that --prompts names"});
}

}  // namespace capstan::cli::generate

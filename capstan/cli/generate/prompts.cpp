#include "capstan/cli/generate/prompts.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string_view>
#include <system_error>

#include "capstan/base/error.h"

namespace capstan::cli::generate {
namespace {

// A pipe comes as a file in memory that tells where it is from (piped_file.h).
std::string name_for_people(const std::string& path) {
  constexpr std::string_view kBegin = "/memfd:";
  constexpr std::string_view kEnd = " (deleted)";
  std::error_code error;
  const std::string target = std::filesystem::read_symlink(path, error).string();
  if (error || !target.starts_with(kBegin) || !target.ends_with(kEnd)) return path;
  return target.substr(kBegin.size(), target.size() - kBegin.size() - kEnd.size());
}

}  // namespace

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
       .where = reads_stdin(arguments) ? "stdin" : name_for_people(arguments.prompt_file),
       .fix = "give prompts after the model's folder, or one per line on stdin or in the file "
              "that --prompts names"});
}

}  // namespace capstan::cli::generate

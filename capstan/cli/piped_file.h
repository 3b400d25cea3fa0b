// Files that can be read only once (a pipe, a terminal) for commands whose ranks all read them.
#pragma once

#include <string>
#include <vector>

namespace capstan::cli {

// An option that names a file, with the place where its value is kept.
struct FileOption {
  std::string flag;
  std::string* path;
};

// Reads what can be read only once into memory and puts a name there that every process of this
// machine can open as often as it likes, while this program or the one that it becomes runs; the
// other options stay as they are. shown_path() of it is the name that the user gave. Returns words
// for the end of a command line that say the same. Throws IoError when a pipe cannot be read, or
// memory is short.
std::vector<std::string> keep_piped_files(const std::vector<FileOption>& options);

// Throws ConfigError where there are such words and the ranks run on other machines.
void refuse_piped_elsewhere(const std::vector<std::string>& words);

}  // namespace capstan::cli

// Environments as values: what a process inherits, what a rank is told, what travels to other
// hosts.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace capstan::launch {

using Environment = std::map<std::string, std::string>;

// The environment of this process.
Environment current_environment();

// Lines NAME=VALUE; blank lines, "#" comments and a leading "export " are fine, and one pair of
// quotes around a value is taken off. Throws ConfigError naming `file` and every bad line.
Environment parse_env_file(std::string_view text, const std::string& file);

// Variables that another host's ranks need as well (NCCL_*, PYTHON*, OMP_*, …). PATH and
// LD_LIBRARY_PATH are among them: the same programs must be found there.
Environment forwarded_variables(const Environment& env);

// Without what an outer mpirun, torchrun or capstan told *this* process: its ranks are new ones.
Environment without_launcher_variables(Environment env);

// One word of a command line for a POSIX shell.
std::string shell_quote(std::string_view word);
std::string shell_join(const std::vector<std::string>& words);

// The words of `text` as a shell would split them (quotes and backslashes, no expansion). Throws
// ConfigError naming `where` when a quote is not closed.
std::vector<std::string> shell_split(std::string_view text, const std::string& where);

}  // namespace capstan::launch

// Starts the ranks of a command that the engine runs, on this machine, or becomes the only one.
#pragma once

#include <string>
#include <vector>

namespace capstan::cli {

// The words of the command line from the command's name on: what the engine is given.
std::vector<std::string> own_words(int argc, char** argv, const std::string& command);

// True in a rank that another launcher started, of several.
bool started_as_rank();

// One per GPU unless the CPU was asked for, else `on_cpu`.
int default_ranks(const std::string& device, int on_cpu);

// The exit code of all.
int start_ranks(int ranks, std::vector<std::string> words);

}  // namespace capstan::cli

// Starts the ranks of a command that the engine runs, on this machine, or becomes the only one.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace capstan::cli {

// The words of the command line from the command's name on: what the engine is given.
std::vector<std::string> own_words(int argc, char** argv, const std::string& command);

// True in a rank that another launcher started, of several.
bool started_as_rank();

// One per GPU unless the CPU was asked for, else `on_cpu`.
int default_ranks(const std::string& device, int on_cpu);

// For a configuration that keeps state on a disk. OpenMP's threads turn in a loop for
// milliseconds after each piece of work, and so take cores from the threads that move that state:
// unless the user has said how they wait, they wait in the kernel soon. libgomp reads it when it is
// loaded, so before the ranks start. Whatever is wrong with `config` is left to the ranks to tell.
void calm_openmp_threads(const std::string& config);

// Called when it is known how many ranks there will be, and whether all of them run on this
// machine. What it throws is told once, and no rank is started.
using CheckRun = std::function<void(int world_size, bool here)>;

// Where ranks leave what `capstan doctor` reads: inside of the run's folder. Empty, as without one:
// nowhere.
std::string notes_folder(const std::string& run_folder);

// The exit code of all. `notes` as from notes_folder().
int start_ranks(int ranks, std::vector<std::string> words, const CheckRun& check,
                const std::string& notes = "");

}  // namespace capstan::cli

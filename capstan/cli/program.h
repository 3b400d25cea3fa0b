// The frame that `capstan` and `capstan-engine` share: read the command line, run one command,
// report what went wrong.
#pragma once

#include <functional>
#include <string>

namespace CLI {
class App;
}

namespace capstan::cli {

// Adds the program's commands to the app; each leaves its exit code in the int.
using AddCommands = std::function<void(CLI::App&, int& exit_code)>;

// The whole of a main(): returns its exit code.
int run_program(const std::string& about, const AddCommands& add_commands, int argc, char** argv);

}  // namespace capstan::cli

// The way from the small `capstan` program to `capstan-engine` beside it, which holds libtorch.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace capstan::cli {

// Where capstan-engine lies: in the folder of the running program, links followed.
[[nodiscard]] std::filesystem::path engine_path();

// Turns this process into `capstan-engine args…`. Returns only by throwing: ConfigError when the
// engine is not there or cannot be started.
[[noreturn]] void exec_engine(const std::vector<std::string>& args);

// The fix for an engine that is not there, for a message.
[[nodiscard]] std::string engine_fix();

}  // namespace capstan::cli

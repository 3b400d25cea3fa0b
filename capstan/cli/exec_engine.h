// The way from the small `capstan` program to the engine beside it, which holds libtorch:
// capstan-engine-cuda where a GPU is visible and the build has one, else capstan-engine.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace capstan::cli {

// Which engine suits this machine, in the folder of the running program (links followed).
[[nodiscard]] std::filesystem::path engine_path();

// Turns this process into the engine with these arguments. Returns only by throwing: ConfigError
// when the engine is not there or cannot be started.
[[noreturn]] void exec_engine(const std::vector<std::string>& args);

// The fix for an engine that is not there, for a message.
[[nodiscard]] std::string engine_fix();

}  // namespace capstan::cli

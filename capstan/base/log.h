// Where the library says things. It never prints by itself: whoever owns the terminal hands in a
// Logger.
#pragma once

#include <string_view>

namespace capstan {

enum class LogLevel { debug, info, warning, error };

// Threads: log() may be called from any thread.
class Logger {
 public:
  virtual ~Logger() = default;
  virtual void log(LogLevel level, std::string_view text) = 0;
};

// Swallows everything; for callers that want silence.
class NullLogger final : public Logger {
 public:
  void log(LogLevel, std::string_view) override {}
};

}  // namespace capstan

// The one root of everything capstan throws: what went wrong, where, and how to fix it.
#pragma once

#include <source_location>
#include <stdexcept>
#include <string>

#include "capstan/base/stack_trace.h"

namespace capstan {

struct ErrorInfo {
  std::string what;   // what went wrong, with the actual values
  std::string where;  // the user's place: a config key, a file and offset, a group and operation
  std::string fix;    // what to change or run next; empty only for our own bugs
};

// what() is the three parts on up to three lines. The kinds say what is still usable afterwards.
class Error : public std::runtime_error {
 public:
  explicit Error(ErrorInfo info, std::source_location at = std::source_location::current());

  const ErrorInfo& info() const noexcept { return info_; }
  const std::source_location& at() const noexcept { return at_; }

 private:
  ErrorInfo info_;
  std::source_location at_;
};

// Wrong input; nothing has started, everything is still usable.
struct ConfigError : Error {
  using Error::Error;
};
// Memory ran out. After a backward of a single rank everything is usable but this step's gradients,
// which are to be cleared; several ranks cannot go on together.
struct OutOfMemory : ConfigError {
  using ConfigError::ConfigError;
};
// A file or device failed; all but that operation is still usable.
struct IoError : Error {
  using Error::Error;
};
// The group is unusable from here on.
struct CommError : Error {
  using Error::Error;
};
// Our bug; stop. Remembers who called whom where it was made.
class InternalError : public Error {
 public:
  explicit InternalError(ErrorInfo info, std::source_location at = std::source_location::current());

  const StackTrace& stack() const noexcept { return stack_; }

 private:
  StackTrace stack_;
};

}  // namespace capstan

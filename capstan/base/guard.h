// The frame of a main(): what a program prints and how it ends when something is thrown.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>

namespace capstan {

inline constexpr int kExitUserError = 2;
inline constexpr int kExitInternalError = 70;

using ReportFunction = void (*)(const std::string&);

// What there is to say about an exception that nobody caught, with the calls that led to it.
std::string describe_uncaught();

// Runs `body` and returns its value. A ConfigError, IoError or CommError becomes its text and
// kExitUserError; an InternalError its text, its stack and kExitInternalError.
int run_and_report(const std::function<int(int, char**)>& body, int argc, char** argv,
                   ReportFunction report);

// run_and_report() for a main(). Anything else that is thrown, on whatever thread, ends the program
// where it was thrown: only there the calls that led to it are still known. Also takes the
// precautions that a program needs before libtorch is first used (cpu_isa.h).
template <ReportFunction Report>
int run_guarded(const std::function<int(int, char**)>& body, int argc, char** argv) {
  std::set_terminate([] {
    Report(describe_uncaught());
    std::fflush(stdout);  // what was said before is not lost
    std::_Exit(kExitInternalError);
  });
  return run_and_report(body, argc, argv, Report);
}

}  // namespace capstan

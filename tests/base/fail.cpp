// A program with a bug: fails in the way that its argument names.
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>

#include "capstan/base/error.h"
#include "capstan/base/guard.h"

// Not in an unnamed namespace: the report can only tell names that a program exports.
[[gnu::noinline]] void inner_call(const std::string& how) {
  if (how == "config") {
    throw capstan::ConfigError({.what = "stage is 7", .where = "zero.stage", .fix = "use 3"});
  }
  if (how == "standard" || how == "thread") throw std::out_of_range("no such element");
  if (how == "number") throw 5;  // NOLINT(bugprone-std-exception-baseclass): that is the point
  throw capstan::InternalError({.what = "unknown launcher"});
}

[[gnu::noinline]] int outer_call(const std::string& how) {
  inner_call(how);
  return 1;
}

namespace {

int fail(int argc, char** argv) {
  std::printf("said before\n");
  const std::string how = argc > 1 ? argv[1] : "";
  if (how == "thread") {
    std::jthread([&] { outer_call(how); }).join();
    return 1;
  }
  if (how == "rethrown") {  // as autograd does with what its hooks throw
    std::exception_ptr error;
    try {
      outer_call(how);
    } catch (...) {
      error = std::current_exception();
    }
    std::rethrow_exception(error);
  }
  return outer_call(how);
}

void report(const std::string& text) { std::fprintf(stderr, "fail: %s\n", text.c_str()); }

}  // namespace

int main(int argc, char** argv) { return capstan::run_guarded<report>(fail, argc, argv); }

#include "capstan/base/guard.h"

#include <fmt/format.h>

#include "capstan/base/bus_error.h"
#include "capstan/base/cpu_isa.h"
#include "capstan/base/error.h"
#include "capstan/base/stack_trace.h"

namespace capstan {
namespace {

constexpr const char* kOurBug = "This is a bug in capstan. Calls, innermost first:";

std::string describe(const InternalError& error) {
  return fmt::format("internal error: {}\n  at:    {}:{} ({})\n  {}{}", error.what(),
                     error.at().file_name(), error.at().line(), error.at().function_name(), kOurBug,
                     error.stack().to_text());
}

}  // namespace

std::string describe_uncaught() {
  const StackTrace stack = StackTrace::here();
  const auto text = [&](const char* what) {
    return fmt::format("internal error: {}\n  {}{}", what, kOurBug, stack.to_text());
  };
  try {
    const std::exception_ptr error = std::current_exception();
    if (error == nullptr) return text("the program was ended");
    std::rethrow_exception(error);
  } catch (const InternalError& error) {  // of another thread
    return describe(error);
  } catch (const std::exception& error) {
    return text(error.what());
  } catch (...) {
    return text("an exception of an unknown type");
  }
}

int run_and_report(const std::function<int(int, char**)>& body, int argc, char** argv,
                   ReportFunction report) {
  avoid_broken_amx();
  explain_bus_errors();
  try {
    return body(argc, argv);
  } catch (const InternalError& error) {
    report(describe(error));
    return kExitInternalError;
  } catch (const Error& error) {
    report(fmt::format("error: {}", error.what()));
    return kExitUserError;
  }
}

}  // namespace capstan

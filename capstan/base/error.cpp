#include "capstan/base/error.h"

#include <utility>

#include <fmt/format.h>

#include "capstan/base/cpu_isa.h"

namespace capstan {
namespace {

std::string render(const ErrorInfo& info) {
  std::string text = info.what;
  if (!info.where.empty()) text += "\n  where: " + info.where;
  if (!info.fix.empty()) text += "\n  fix:   " + info.fix;
  return text;
}

}  // namespace

Error::Error(ErrorInfo info, std::source_location at)
    : std::runtime_error(render(info)), info_(std::move(info)), at_(at) {}

int run_guarded(int (*body)(int, char**), int argc, char** argv,
                void (*report)(const std::string&)) {
  avoid_broken_amx();
  try {
    return body(argc, argv);
  } catch (const InternalError& error) {
    report(fmt::format("internal error: {}\n  at:    {}:{} ({})\n  This is a bug in capstan.",
                       error.what(), error.at().file_name(), error.at().line(),
                       error.at().function_name()));
    return kExitInternalError;
  } catch (const Error& error) {
    report(fmt::format("error: {}", error.what()));
    return kExitUserError;
  } catch (const std::exception& error) {
    report(fmt::format("internal error: {}\n  This is a bug in capstan.", error.what()));
    return kExitInternalError;
  }
}

}  // namespace capstan

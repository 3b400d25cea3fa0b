#include "capstan/base/error.h"

#include <utility>

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

InternalError::InternalError(ErrorInfo info, std::source_location at)
    : Error(std::move(info), at), stack_(StackTrace::here()) {}

}  // namespace capstan

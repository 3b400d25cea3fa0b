#include "capstan/base/stack_trace.h"

#include <array>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <fmt/format.h>

namespace capstan {
namespace {

constexpr int kMostCalls = 64;  // a loop without end is recognised long before

std::string demangle(const char* symbol) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(symbol, nullptr, nullptr, &status), std::free);
  return status == 0 ? name.get() : symbol;
}

std::string describe(void* call) {
  // A return address may already belong to the next function; the call itself lies before it.
  const char* const address = static_cast<char*>(call) - 1;
  Dl_info info{};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return fmt::format("{}", call);
  if (info.dli_sname != nullptr) return demangle(info.dli_sname);
  return fmt::format("{}+{:#x}", std::filesystem::path(info.dli_fname).filename().string(),
                     address - static_cast<char*>(info.dli_fbase));
}

}  // namespace

// Never inlined: one call is left out, and it must be this one.
[[gnu::noinline]] StackTrace StackTrace::here() {
  std::array<void*, kMostCalls> calls{};
  const int count = backtrace(calls.data(), kMostCalls);
  StackTrace trace;
  trace.calls_.assign(calls.begin() + (count > 0 ? 1 : 0), calls.begin() + count);
  return trace;
}

std::string StackTrace::to_text() const {
  std::string text;
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    text += fmt::format("\n  #{:<2} {}", i, describe(calls_[i]));
  }
  return text;
}

}  // namespace capstan

#include "tests/support/fuzz.h"

#include <algorithm>
#include <atomic>
#include <exception>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "tests/support/watchdog.h"

namespace capstan::test {
namespace {

// Whatever the size of the input: tables, messages, one block of a file.
constexpr std::int64_t kFreeBytes = 32 << 20;

// Empty, or what is wrong with how the reader took the input.
std::string problem_with(const FuzzReader& reader, const std::string& input, FuzzReport& report) {
  try {
    reader.read(input);
    ++report.accepted;
  } catch (const InternalError& error) {
    return fmt::format("an error of our own: {}", error.what());
  } catch (const Error& error) {
    ++report.refused;
    const ErrorInfo& info = error.info();
    if (info.what.empty() || info.where.empty() || info.fix.empty()) {
      return fmt::format("an error without what, where or fix: {}", error.what());
    }
  } catch (const std::exception& error) {
    return fmt::format("an error that is not ours: {}", error.what());
  }
  return "";
}

}  // namespace

FuzzReport run_fuzz(const FuzzReader& reader, std::int64_t count, std::uint64_t seed) {
  FuzzReport report;
  Mutator mutator(seed, reader.corpus);
  std::atomic<std::int64_t> progress = 0;
  const Watchdog watchdog(progress);
  for (; report.inputs < count; ++report.inputs) {
    progress = report.inputs;
    const std::string input = mutator.next();
    reset_peak_memory();
    const std::int64_t before = memory_in_use();
    std::string problem = problem_with(reader, input, report);
    const std::int64_t used = peak_memory() - before;
    report.peak_bytes = std::max(report.peak_bytes, used);
    if (problem.empty() && used > kFreeBytes + reader.bytes_per_byte * std::ssize(input)) {
      problem = fmt::format("{} bytes of memory for {} of input", used, input.size());
    }
    if (problem.empty()) continue;
    report.failure = fmt::format("{}\ninput {} of seed {}, {} bytes:\n{}", problem, report.inputs,
                                 seed, input.size(), input);
    return report;
  }
  return report;
}

}  // namespace capstan::test

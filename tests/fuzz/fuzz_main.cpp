// fuzz COUNT [READER [SEED]]: changed inputs for one reader or for all; exit code 1 at the first
// failure.
#include <chrono>
#include <cstdio>
#include <string>

#include <fmt/format.h>

#include "tests/fuzz/readers.h"

namespace {

int run(std::int64_t count, const std::string& name, std::uint64_t seed) {
  std::int64_t total = 0;
  int readers = 0;
  for (const capstan::test::FuzzReader& reader : capstan::test::all_readers()) {
    if (!name.empty() && reader.name != name) continue;
    const auto start = std::chrono::steady_clock::now();
    const capstan::test::FuzzReport report = capstan::test::run_fuzz(reader, count, seed);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    fmt::print("{}: {} inputs in {:.1f} s, {} accepted, {} refused, at most {} KiB of memory\n",
               reader.name, report.inputs, took.count(), report.accepted, report.refused,
               report.peak_bytes / 1024);
    std::fflush(stdout);
    if (!report.failure.empty()) {
      fmt::print("FAILED: {}\n", report.failure);
      return 1;
    }
    ++readers;
    total += report.inputs;
  }
  if (readers == 0) fmt::print("there is no reader {}\n", name);
  fmt::print("{} readers, {} inputs: no crash, no hang, memory in proportion\n", readers, total);
  return readers == 0 ? 2 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 4) {
    std::fputs("usage: fuzz COUNT [READER [SEED]]\n", stderr);
    return 2;
  }
  return run(std::stoll(argv[1]), argc > 2 ? argv[2] : "", argc > 3 ? std::stoull(argv[3]) : 1);
}

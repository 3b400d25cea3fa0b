// config_fuzz COUNT [SEED]: a campaign of mutated configurations; exit code 1 at the first failure.
#include <chrono>
#include <cstdio>
#include <string>

#include "fuzz.h"

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fputs("usage: config_fuzz COUNT [SEED]\n", stderr);
    return 2;
  }
  const auto start = std::chrono::steady_clock::now();
  const capstan::config::FuzzReport report = capstan::config::run_fuzz(
      std::stoll(argv[1]), argc == 3 ? std::stoull(argv[2]) : 1, capstan::config::fuzz_corpus());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("%lld inputs in %.1f s: %lld resolved, %lld with problems, %lld unreadable\n",
              static_cast<long long>(report.inputs), took.count(),
              static_cast<long long>(report.resolved), static_cast<long long>(report.with_problems),
              static_cast<long long>(report.unreadable));
  if (report.failure.empty()) return 0;
  std::printf("FAILED: %s\n", report.failure.c_str());
  return 1;
}

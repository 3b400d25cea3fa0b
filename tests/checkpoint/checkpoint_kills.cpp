// checkpoint_kills N [SEED]: the long count of kills; see kills.h.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

#include "capstan/base/guard.h"
#include "tests/checkpoint/kills.h"

namespace {

int run(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 200;
  const std::uint64_t seed =
      argc > 2 ? std::strtoull(argv[2], nullptr, 10) : std::random_device{}();
  const auto outcome = capstan::checkpoint::kill_savers(count, seed);
  if (!outcome.failure.empty()) {
    std::printf("kill %d, seed %llu: %s\n", outcome.kills, static_cast<unsigned long long>(seed),
                outcome.failure.c_str());
    return 1;
  }
  std::printf(
      "%d kills, %d of them during a save: the newest reported checkpoint was whole each "
      "time\n",
      outcome.kills, outcome.during_a_save);
  return 0;
}

void report(const std::string& text) {
  std::fprintf(stderr, "checkpoint_kills: %s\n", text.c_str());
}

}  // namespace

int main(int argc, char** argv) { return capstan::run_guarded<report>(run, argc, argv); }

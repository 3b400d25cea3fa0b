#include "tests/checkpoint/kills.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "capstan/checkpoint/folder.h"
#include "tests/checkpoint/checkpoint_fixture.h"

namespace capstan::checkpoint {
namespace {

// Saves versions first, first + 1, ... and reports each through `report` once it is committed.
[[noreturn]] void save_for_ever(const std::filesystem::path& folder, int first, int report) {
  for (int version = first;; ++version) {
    std::string tag = "v";
    tag += std::to_string(version % 3 == 0 ? 0 : version);  // some replace an old one
    save({.folder = folder,
          .tag = tag,
          .ranks = 2,
          .version = version,
          .keep_last = 3,
          .rows = 30'000});
    if (::write(report, &version, sizeof version) != sizeof version) ::_exit(1);
  }
}

int last_report(int pipe) {
  int last = 0;
  int version = 0;
  while (::read(pipe, &version, sizeof version) == sizeof version) last = version;
  return last;
}

bool has_unfinished(const std::filesystem::path& folder) {
  const std::filesystem::directory_iterator entries(folder);
  return std::any_of(begin(entries), end(entries), [](const auto& entry) {
    return entry.path().filename().string().find(".partial-") != std::string::npos;
  });
}

}  // namespace

KillOutcome kill_savers(int count, std::uint64_t seed) {
  const test::TempFolder folder;
  KillOutcome outcome;
  std::mt19937_64 random(seed);
  int reported = 1;
  save({.folder = folder.path(), .tag = "v1", .version = 1, .rows = 30'000});
  for (; outcome.kills < count && outcome.failure.empty(); ++outcome.kills) {
    int ends[2];
    if (::pipe(ends) != 0) return {outcome.kills, 0, "no pipe"};
    const pid_t child = ::fork();
    if (child == 0) save_for_ever(folder.path(), reported + 1, ends[1]);
    ::close(ends[1]);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 300'000));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    reported = std::max(reported, last_report(ends[0]));
    ::close(ends[0]);
    outcome.during_a_save += has_unfinished(folder.path()) ? 1 : 0;
    const auto newest = newest_complete(folder.path());
    outcome.failure = error_text([&] {
      if (!newest) throw IoError({.what = "no complete checkpoint"});
      const auto steps = static_cast<int>(read_index(newest->folder).state.progress.at("steps"));
      if (steps < reported || !holds_version(newest->folder, steps)) {
        std::string what = "reported: ";
        what.append(std::to_string(reported)).append(", found: ").append(std::to_string(steps));
        throw IoError({.what = what});
      }
      reported = steps;
    });
  }
  return outcome;
}

}  // namespace capstan::checkpoint

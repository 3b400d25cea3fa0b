#include "capstan/launch/run.h"

#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/launch/network.h"

namespace capstan::launch {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Outcome {
  Result result;
  std::map<int, std::vector<std::string>> lines;  // by rank
};

Outcome run_shell(int ranks, const std::string& script) {
  Options options;
  options.program = {.words = {"/bin/sh", "-c", script}, .python = false};
  options.launcher = Launcher::local;
  options.ranks_per_host = ranks;
  options.grace = std::chrono::milliseconds(1000);
  Machine machine = this_machine("/bin/true");
  machine.devices.clear();
  Outcome outcome;
  outcome.result =
      run(make_plan(options, machine), {.on_line = [&](int rank, Stream, std::string_view line) {
            outcome.lines[rank].emplace_back(line);
          }});
  return outcome;
}

TEST(Run, ReturnsWhenAllRanksHaveEnded) {
  const Outcome outcome =
      run_shell(3, "echo $RANK of $WORLD_SIZE; echo no newline | tr -d '\\n' >&2");
  EXPECT_EQ(outcome.result.exit_code, 0);
  EXPECT_EQ(outcome.result.first_failed_rank, -1);
  EXPECT_EQ(outcome.result.endings.size(), 3u);
  EXPECT_THAT(outcome.lines.at(2), testing::UnorderedElementsAre("2 of 3", "no newline"));
}

TEST(Run, StopsTheOthersAndNamesTheFirstThatFailed) {
  const Outcome outcome =
      run_shell(3, "if [ $RANK = 1 ]; then echo broken >&2; exit 7; fi; trap '' TERM; sleep 600");
  EXPECT_EQ(outcome.result.exit_code, 7);
  EXPECT_EQ(outcome.result.first_failed_rank, 1);
  EXPECT_EQ(outcome.result.sentence, "rank 1 exited with code 7");
  EXPECT_THAT(outcome.result.last_lines, ElementsAre("broken"));
  EXPECT_NE(outcome.result.endings[0].signal, 0);
}

TEST(Run, ReportsASignalAsAShellWould) {
  const Outcome outcome = run_shell(1, "kill -SEGV $$");
  EXPECT_EQ(outcome.result.exit_code, 139);
  EXPECT_THAT(outcome.result.sentence, HasSubstr("SIGSEGV"));
}

TEST(Run, ThrowsWhenAProgramCannotBeStarted) {
  Plan plan;
  plan.hosts = {{"localhost", {"0"}}};
  plan.processes = {{.name = "rank 0", .rank = 0, .argv = {"/proc/version"}}};
  EXPECT_THROW(run(plan, {}), IoError);
}

TEST(HeldPort, IsGivenToNobodyElseAndCanBeTakenOver) {
  std::vector<HeldPort> ports(200);
  std::set<int> numbers;
  for (const HeldPort& port : ports) numbers.insert(port.number());
  EXPECT_EQ(numbers.size(), ports.size());
  check_port_is_free(ports.front().number());  // listens on it, as rank 0 will
}

}  // namespace
}  // namespace capstan::launch

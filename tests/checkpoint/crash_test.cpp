// What survives a kill and a power cut.
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "capstan/checkpoint/folder.h"
#include "tests/checkpoint/checkpoint_fixture.h"
#include "tests/checkpoint/kills.h"
#include "tests/checkpoint/lossy_disk.h"

namespace capstan::checkpoint {
namespace {

TEST(Crash, AfterEveryKillTheNewestReportedCheckpointIsWhole) {
  const KillOutcome outcome = kill_savers(20, 20261115);
  EXPECT_EQ(outcome.failure, "") << "kill " << outcome.kills;
  EXPECT_EQ(outcome.kills, 20);
  EXPECT_GT(outcome.during_a_save, 0) << "no kill met a save: the test looks at nothing";
}

// The power goes at operation `last` of a save of version 2 beside version 1, or right after the
// save where it has fewer; then the result is false.
bool power_cut_at(int last) {
  const test::TempFolder folder;
  save({.folder = folder.path(), .tag = "first", .version = 1});
  const pid_t child = ::fork();
  if (child == 0) {
    LossyDisk lossy(folder.path(), last);
    Disk disk = disk_over(lossy);
    save({.folder = folder.path(), .tag = "second", .version = 2}, disk);
    lossy.cut_power(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  const bool finished = WEXITSTATUS(status) == 0;
  EXPECT_TRUE(finished || WEXITSTATUS(status) == LossyDisk::kPowerOff) << "operation " << last;
  const auto newest = newest_complete(folder.path());
  if (!newest) {
    ADD_FAILURE() << "nothing is left after operation " << last;
    return false;
  }
  const auto steps = static_cast<int>(read_index(newest->folder).state.progress.at("steps"));
  EXPECT_TRUE(holds_version(newest->folder, steps)) << "operation " << last;
  EXPECT_TRUE(steps == 2 || !finished) << "what was reported as saved is gone";
  return !finished;
}

TEST(Crash, UnsyncedBytesAndNamesAreNeverNeeded) {
  int last = 0;
  while (power_cut_at(last) && !HasFailure()) ++last;
  EXPECT_GT(last, 30) << "the save has fewer operations than it should";
}

}  // namespace
}  // namespace capstan::checkpoint

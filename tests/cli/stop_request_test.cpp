#include "capstan/cli/train/stop_request.h"

#include <csignal>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace capstan::cli::train {
namespace {

TEST(StopRequest, SeesASignalOnceItCame) {
  for (const int signal : {SIGINT, SIGTERM}) {
    StopRequest stop;
    EXPECT_FALSE(stop.seen());
    kill(getpid(), signal);
    EXPECT_TRUE(stop.seen());
    EXPECT_TRUE(stop.seen());
  }
}

TEST(StopRequest, LetsASecondSignalEndTheProgram) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    StopRequest stop;
    kill(getpid(), SIGINT);
    if (!stop.seen()) _exit(1);
    kill(getpid(), SIGINT);
    _exit(2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
}

}  // namespace
}  // namespace capstan::cli::train

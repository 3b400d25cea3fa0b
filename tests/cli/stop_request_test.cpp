#include "capstan/cli/train/stop_request.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "capstan/base/job_signals.h"

namespace capstan::cli::train {
namespace {

bool soon(const std::function<bool()>& holds) {
  for (int i = 0; i < 3000 && !holds(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return holds();
}

TEST(StopRequest, SeesASignalOnceItCameAndTellsItOnce) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    ::signal(signal, SIG_DFL);  // a job in the background is started with SIGINT ignored
    std::atomic<int> told = 0;
    StopRequest stop([&] { ++told; });
    stop.defer();
    EXPECT_FALSE(stop.seen());
    kill(getpid(), signal);
    EXPECT_TRUE(soon([&] { return stop.seen() && told == 1; }));
    EXPECT_EQ(stop.number(), signal);
  }
}

// Which signal ended a process that does this and then computes without end.
template <typename Body>
int signal_that_ends(Body&& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(120);
    body();
    for (std::atomic<std::uint64_t> i = 0;; ++i) {
    }
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

TEST(StopRequest, LetsASecondSignalEndTheProgramInTheMiddleOfAStep) {
  EXPECT_EQ(signal_that_ends([] {
              auto* const stop = new StopRequest;
              stop->defer();
              kill(getpid(), SIGINT);
              if (!soon([&] { return stop->seen(); })) _exit(1);
              kill(getpid(), SIGINT);
            }),
            SIGINT);
}

TEST(StopRequest, EndsTheProgramWhenAPeerHasFailedForNoStepWillEnd) {
  EXPECT_EQ(signal_that_ends([] {
              auto* const stop =
                  new StopRequest([] { _exit(1); });  // nobody asked to stop in order
              stop->defer();
              kill(getpid(), kPeerFailedSignal);
              kill(getpid(), SIGTERM);
            }),
            SIGTERM);
}

TEST(StopRequest, LeavesIgnoredWhatWasIgnored) {
  EXPECT_EQ(signal_that_ends([] {
              signal(SIGHUP, SIG_IGN);  // nohup
              auto* const stop = new StopRequest;
              stop->defer();
              kill(getpid(), SIGHUP);
              kill(getpid(), SIGTERM);
              if (!soon([&] { return stop->seen(); }) || stop->number() != SIGTERM) _exit(1);
              kill(getpid(), SIGINT);
            }),
            SIGINT);
}

TEST(StopRequest, WhileNothingIsTrainedTheFirstSignalEndsTheProgram) {
  EXPECT_EQ(signal_that_ends([] {
              new StopRequest;
              kill(getpid(), SIGTERM);
            }),
            SIGTERM);
}

}  // namespace
}  // namespace capstan::cli::train

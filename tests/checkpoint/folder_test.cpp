#include "capstan/checkpoint/folder.h"

#include <atomic>
#include <fstream>
#include <set>
#include <thread>

#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/checkpoint/checksum.h"
#include "capstan/checkpoint/folder_lock.h"
#include "tests/checkpoint/checkpoint_fixture.h"

namespace capstan::checkpoint {
namespace {

using testing::HasSubstr;

// How the process ended that ran the body: "exit 0" where it returned true.
std::string in_another_process(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      ::_exit(body() ? 0 : 1);
    } catch (...) {
      ::_exit(2);
    }
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) return "none";
  return WIFEXITED(status) ? "exit " + std::to_string(WEXITSTATUS(status))
                           : "signal " + std::to_string(WTERMSIG(status));
}

TEST(FolderLock, ASecondJobIsToldWhoSavesHere) {
  const test::TempFolder folder;
  const FolderLock mine(folder.path());
  EXPECT_EQ(in_another_process([&] {
              const std::string text = error_text([&] { const FolderLock theirs(folder.path()); });
              return text.find("another job is saving into this folder: process " +
                               std::to_string(::getppid())) != std::string::npos;
            }),
            "exit 0");
}

TEST(FolderLock, TwoEnginesOfOneProcessTakeTurnsAndOneThatEndsLeavesTheOthersLock) {
  const test::TempFolder folder;
  const auto other_job_is_refused = [&] {
    return in_another_process([&] {
             return !error_text([&] { const FolderLock theirs(folder.path()); }).empty();
           }) == "exit 0";
  };
  auto first = std::make_unique<FolderLock>(folder.path());
  auto second = std::make_unique<FolderLock>(folder.path());
  EXPECT_FALSE(first->shared());
  EXPECT_TRUE(second->shared());
  {
    const SaveTurn turn(*first);
    EXPECT_THAT(error_text([&] { const SaveTurn too(*second); }),
                HasSubstr("another engine of this process is saving"));
  }
  EXPECT_EQ(error_text([&] { const SaveTurn turn(*second); }), "");
  second.reset();
  EXPECT_TRUE(other_job_is_refused());  // a lock of the process would be gone
  second = std::make_unique<FolderLock>(folder.path());
  first.reset();
  second->own();
  EXPECT_FALSE(second->shared());
  EXPECT_TRUE(other_job_is_refused());
}

TEST(FolderLock, AFolderThatWasRemovedIsLockedAnew) {
  const test::TempFolder folder;
  FolderLock mine(folder / "run");
  std::filesystem::remove_all(folder / "run");
  mine.own();
  EXPECT_EQ(in_another_process([&] {
              return !error_text([&] { const FolderLock theirs(folder / "run"); }).empty();
            }),
            "exit 0");
}

// Others look while a job saves and keeps one: there is always one, and nobody sees none.
TEST(Folder, IsNeverSeenEmptyWhileAJobSavesAndRemoves) {
  const test::TempFolder folder;
  save({.folder = folder.path(), .tag = "v0", .version = 0, .rows = 10});
  std::atomic<bool> saving = true;
  std::thread job([&] {
    for (int version = 1; version <= 150; ++version) {
      save({.folder = folder.path(),
            .tag = "v" + std::to_string(version),
            .version = version,
            .keep_last = 1,
            .rows = 10});
    }
    saving = false;
  });
  int looks = 0;
  std::string problem;
  while (saving && problem.empty()) {
    problem = error_text([&] {
      const auto choice = choose_newest(folder.path());
      if (!choice) throw IoError({.what = "no checkpoint was found"});
      if (!choice->passed_over.empty()) throw IoError({.what = choice->passed_over[0].problem});
    });
    ++looks;
  }
  job.join();
  EXPECT_EQ(problem, "") << "after " << looks << " looks";
}

TEST(FolderLock, NothingIsWrittenThroughALinkNorIntoWhatIsNoPlainFile) {
  const auto contents = [](const std::filesystem::path& path) {
    std::ifstream file(path);
    return std::string{std::istreambuf_iterator<char>(file), {}};
  };
  using Make =
      std::function<void(const std::filesystem::path& victim, const std::filesystem::path&)>;
  const std::vector<Make> ways = {
      [](const auto& victim, const auto& lock) { std::filesystem::create_symlink(victim, lock); },
      [](const auto& victim, const auto& lock) { std::filesystem::create_hard_link(victim, lock); },
      [](const auto&, const auto& lock) { ::mkfifo(lock.c_str(), 0600); }};
  for (const Make& make : ways) {
    const test::TempFolder folder;
    std::ofstream(folder / "victim") << "precious";
    make(folder / "victim", folder / ".lock");
    EXPECT_THAT(error_text([&] { const FolderLock lock(folder.path()); }),
                HasSubstr("a link or not a regular file"));
    EXPECT_EQ(contents(folder / "victim"), "precious");
  }
  const test::TempFolder folder;
  std::ofstream(folder / "victim") << "precious";
  std::filesystem::create_symlink(folder / "victim", folder / "latest.partial");
  save({.folder = folder.path()});
  EXPECT_EQ(contents(folder / "victim"), "precious");
}

TEST(FolderLock, GoesWithTheProcessThatHeldIt) {
  const test::TempFolder folder;
  ASSERT_EQ(in_another_process([&] {
              const FolderLock theirs(folder.path());
              return ::kill(::getpid(), SIGKILL) != 0;
            }),
            "signal " + std::to_string(SIGKILL));
  EXPECT_EQ(error_text([&] { const FolderLock mine(folder.path()); }), "");
}

TEST(Folder, AFullDiskIsAClearErrorAndNothingIsLost) {
  const test::TempFolder folder;
  if (::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=256k") != 0) {
    GTEST_SKIP() << "needs the right to mount a small tmpfs";
  }
  save({.folder = folder.path(), .tag = "step1", .version = 1});
  const std::string text = error_text(
      [&] { save({.folder = folder.path(), .tag = "step2", .version = 2, .rows = 100'000}); });
  EXPECT_THAT(text, HasSubstr("ENOSPC"));
  EXPECT_TRUE(holds_version(newest_complete(folder.path())->folder, 1));
  std::size_t entries = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    entries += entry.exists() ? 1 : 0;
  }
  EXPECT_EQ(entries, 2U) << "the unfinished folder is gone";
  ::umount(folder.path().c_str());
}

TEST(Folder, AReadOnlyFolderIsAClearErrorAndNothingIsLost) {
  const test::TempFolder folder;
  if (::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=4m") != 0) {
    GTEST_SKIP() << "needs the right to mount (root writes into any other folder)";
  }
  save({.folder = folder.path(), .tag = "step1", .version = 1});
  ASSERT_EQ(::mount("tmpfs", folder.path().c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, ""), 0);
  EXPECT_THAT(error_text([&] { save({.folder = folder.path(), .tag = "step2", .version = 2}); }),
              HasSubstr("EROFS"));
  EXPECT_TRUE(holds_version(newest_complete(folder.path())->folder, 1));
  ::umount(folder.path().c_str());
}

// What the ranks wrote must cover every byte of every tensor once.
TEST(Folder, APieceThatIsMissingOrWrittenTwiceIsNoCheckpoint) {
  struct Damage {
    const char* what;
    std::int64_t begin, end;  // bytes of the master of `a` (12000) that are written
    std::int64_t again, until;
  };
  for (const Damage& damage :
       {Damage{"nothing", 0, 12'000, 12'000, 12'000}, Damage{"no end", 0, 8000, 8000, 8000},
        Damage{"no beginning", 4000, 12'000, 12'000, 12'000},
        Damage{"no middle", 0, 4000, 8000, 12'000}, Damage{"twice", 0, 12'000, 4000, 8000}}) {
    SCOPED_TRACE(damage.what);
    const test::TempFolder folder;
    io::DurableCalls calls;
    Disk disk = system_disk(calls);
    const std::vector<ColumnSpec> columns = test_columns();
    const FilePlan plan = plan_files(columns, 1 << 30);
    const SaveRequest request{.folder = folder.path(), .tag = "step1"};
    const std::filesystem::path partial = begin_save(request, plan, disk);
    PieceWriter other(plan, partial, {.bytes = 64 << 10}, disk);  // another rank's; both end apart:
    PieceWriter writer(plan, partial, {.bytes = 64 << 10}, disk);  // no bytes are written at once
    std::vector<Piece> pieces = test_pieces(columns, 0, 1, 1);
    for (Piece& piece : pieces) {
      if (piece.column != kMasterColumn || piece.tensor != "a") continue;
      piece.begin = damage.again;
      piece.end = damage.until;
      if (piece.begin < piece.end) other.write(piece);
      piece.begin = damage.begin;
      piece.end = damage.end;
    }
    write_part(partial, 1, other.finish(), disk);
    for (const Piece& piece : pieces) writer.write(piece);
    write_part(partial, 0, writer.finish(), disk);
    const std::string text = error_text([&] { commit_save(partial, request, plan, 2, disk); });
    const bool whole = damage.what == std::string_view("nothing");
    EXPECT_THAT(text, whole ? HasSubstr("") : HasSubstr("leave a gap or overlap")) << damage.what;
    EXPECT_EQ(text.empty(), whole) << damage.what;
    EXPECT_EQ(newest_complete(folder.path()).has_value(), whole) << damage.what;
    EXPECT_FALSE(std::filesystem::exists(partial)) << damage.what;
  }
}

TEST(Folder, WithoutCheckpointsThereIsNoNewest) {
  const test::TempFolder folder;
  EXPECT_EQ(newest_complete(folder.path()), std::nullopt);
  EXPECT_EQ(newest_complete(folder / "nowhere"), std::nullopt);
  EXPECT_EQ(latest_tag(folder.path()), std::nullopt);
}

TEST(Folder, WithoutACompleteCheckpointBeginningAnewIsAnError) {
  const test::TempFolder folder;
  const auto first = save({.folder = folder.path(), .tag = "step1", .version = 1}).folder;
  std::filesystem::remove(first / "master.safetensors");
  EXPECT_THAT(error_text([&] { choose_newest(folder.path()); }),
              testing::AllOf(HasSubstr("step1: master.safetensors is missing"),
                             HasSubstr("its weights are still there")));
  std::filesystem::remove(first / "model.safetensors");
  EXPECT_THAT(error_text([&] { choose_newest(folder.path()); }),
              HasSubstr("its weights are not complete either"));
}

// Nobody knows whether it was the newest: it is told whatever else there is, and counts as none.
TEST(Folder, OneWithoutItsIndexIsToldAndDoesNotSpoilTheOrder) {
  const test::TempFolder folder;
  const auto first = save({.folder = folder.path(), .tag = "step1", .version = 1}).folder;
  save({.folder = folder.path(), .tag = "step2", .version = 2});
  std::filesystem::remove(first / kIndexFile);
  const auto choice = choose_newest(folder.path());
  EXPECT_EQ(choice->taken.tag, "step2");
  ASSERT_EQ(choice->passed_over.size(), 1U);
  EXPECT_EQ(choice->passed_over.front().tag, "step1");
  EXPECT_TRUE(choice->passed_over.front().weights);
  EXPECT_EQ(save({.folder = folder.path(), .tag = "step3"}).sequence, 3);
}

std::set<std::string> names_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.insert(entry.path().filename());
  }
  return names;
}

TEST(Folder, WhatIsNoCompleteCheckpointIsSetAsideInsteadOfSavedOver) {
  const test::TempFolder folder;
  std::filesystem::create_directory(folder / "results");
  std::ofstream(folder / "results" / "mine.txt") << "not a checkpoint";
  for (int version = 1; version <= 3; ++version) {
    const auto saved = save({.folder = folder.path(), .tag = "results", .version = version}).folder;
    EXPECT_TRUE(holds_version(saved, version));
    if (version < 3) std::filesystem::remove(saved / "master.safetensors");
  }
  EXPECT_EQ(names_in(folder.path()),
            (std::set<std::string>{"latest", "results", "results.set-aside", "results.set-aside-2",
                                   "results.set-aside-3"}));
  EXPECT_TRUE(std::filesystem::exists(folder / "results.set-aside" / "mine.txt"));
  EXPECT_EQ(newest_complete(folder.path())->tag, "results");
}

// NFS cannot exchange two names.
struct WithoutExchange : io::DurableCalls {
  explicit WithoutExchange(int fail_at = -1) : left(fail_at) {}
  int exchange(const std::filesystem::path&, const std::filesystem::path&) override {
    errno = EINVAL;
    return -1;
  }
  int rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    // Of the folder that is finished: the others are small files.
    if (std::filesystem::is_directory(from) && left-- == 0) {
      errno = EIO;
      return -1;
    }
    return io::DurableCalls::rename(from, to);
  }
  int left;
};

TEST(Folder, ATagIsReplacedWhereNamesCannotBeExchanged) {
  const test::TempFolder folder;
  save({.folder = folder.path(), .tag = "same", .version = 1});
  for (const int fail_at : {0, 1}) {
    WithoutExchange calls(fail_at);
    Disk disk = system_disk(calls);
    EXPECT_THAT(
        error_text([&] { save({.folder = folder.path(), .tag = "same", .version = 2}, disk); }),
        HasSubstr("EIO"));
    EXPECT_TRUE(holds_version(newest_complete(folder.path())->folder, 1)) << fail_at;
  }
  WithoutExchange calls;
  Disk disk = system_disk(calls);
  save({.folder = folder.path(), .tag = "same", .version = 2}, disk);
  EXPECT_TRUE(holds_version(folder / "same", 2));
  EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"latest", "same"}));
}

// A crash between the two renames: neither has the tag, and the old one must still be found.
TEST(Folder, OneThatIsBeingReplacedIsStillTheNewest) {
  const test::TempFolder folder;
  const auto same = save({.folder = folder.path(), .tag = "same", .version = 1}).folder;
  std::filesystem::rename(same, folder / "same.replaced");
  EXPECT_TRUE(holds_version(newest_complete(folder.path())->folder, 1));
  save({.folder = folder.path(), .tag = "same", .version = 2});
  save({.folder = folder.path(), .tag = "other", .version = 3});
  EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"latest", "other", "same"}));
}

// Values that other implementations of XXH64 give.
TEST(Checksum, IsXxh64) {
  const auto of = [](std::string_view text) {
    return checksum_text(checksum(std::as_bytes(std::span(text.data(), text.size()))));
  };
  EXPECT_EQ(of(""), "ef46db3751d8e999");
  EXPECT_EQ(of("a"), "d24ec4f1a98c6e5b");
  EXPECT_EQ(of("abc"), "44bc2cf5ad770999");
  EXPECT_EQ(of("Nobody inspects the spammish repetition"), "fbcea83c8a378bf1");
}

}  // namespace
}  // namespace capstan::checkpoint

#include "capstan/checkpoint/folder.h"

#include <signal.h>
#include <sys/mount.h>
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

// Exit code 0 when the body threw an error with this text.
int in_another_process(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body() ? 0 : 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WEXITSTATUS(status);
}

TEST(FolderLock, ASecondJobIsToldWhoSavesHere) {
  const test::TempFolder folder;
  const FolderLock mine(folder.path());
  EXPECT_EQ(in_another_process([&] {
              const std::string text = error_text([&] { const FolderLock theirs(folder.path()); });
              return text.find("another job saves into this folder: process " +
                               std::to_string(::getppid())) != std::string::npos;
            }),
            0);
}

TEST(FolderLock, GoesWithTheProcessThatHeldIt) {
  const test::TempFolder folder;
  ASSERT_EQ(in_another_process([&] {
              const FolderLock theirs(folder.path());
              return ::kill(::getpid(), SIGKILL) != 0;
            }),
            0);
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

TEST(Folder, WithoutCheckpointsThereIsNoNewest) {
  const test::TempFolder folder;
  EXPECT_EQ(newest_complete(folder.path()), std::nullopt);
  EXPECT_EQ(newest_complete(folder / "nowhere"), std::nullopt);
  EXPECT_EQ(latest_tag(folder.path()), std::nullopt);
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

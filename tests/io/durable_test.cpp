#include "capstan/io/durable.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include "capstan/base/error.h"
#include "tests/io/io_fixture.h"

namespace capstan::io {
namespace {

using testing::HasSubstr;

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string read_text(const std::filesystem::path& path) {
  const std::vector<std::byte> bytes = file_bytes(path);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Fails the n-th call, counted over all three kinds; keeps the order of calls.
class FailingCalls final : public DurableCalls {
 public:
  FailingCalls(int fail_at, int error_number) : fail_at_(fail_at), error_number_(error_number) {}

  ssize_t pwrite(int fd, std::span<const std::byte> bytes, std::int64_t offset) override {
    if (fails("pwrite")) return -1;
    // Short counts on the way, as a real disk may.
    return DurableCalls::pwrite(fd, bytes.first(std::min<std::size_t>(bytes.size(), 3)), offset);
  }
  int fsync(int fd) override { return fails("fsync") ? -1 : DurableCalls::fsync(fd); }
  int rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    return fails("rename") ? -1 : DurableCalls::rename(from, to);
  }
  const std::vector<std::string>& calls() const { return calls_; }

 private:
  bool fails(const std::string& name) {
    calls_.push_back(name);
    if (std::ssize(calls_) - 1 != fail_at_) return false;
    errno = error_number_;
    return true;
  }
  const int fail_at_;
  const int error_number_;
  std::vector<std::string> calls_;
};

TEST(Durable, WritesSyncsRenamesAndSyncsTheFolderInThatOrder) {
  const test::TempFolder folder;
  FailingCalls calls(/*fail_at=*/-1, 0);
  write_durably(folder / "a", as_bytes("1234567"), calls);
  EXPECT_EQ(read_text(folder / "a"), "1234567");
  EXPECT_EQ(calls.calls(),
            (std::vector<std::string>{"pwrite", "pwrite", "pwrite", "fsync", "rename", "fsync"}));
}

TEST(Durable, AFailureAtAnyPointLeavesTheOldOrTheNewFileAndNoPartialOne) {
  for (int fail_at = 0; fail_at < 6; ++fail_at) {
    const test::TempFolder folder;
    write_durably(folder / "a", as_bytes("old"));
    FailingCalls calls(fail_at, ENOSPC);
    try {
      write_durably(folder / "a", as_bytes("1234567"), calls);
      FAIL() << "call " << fail_at << " failed unnoticed";
    } catch (const IoError& error) {
      EXPECT_THAT(error.what(), HasSubstr("ENOSPC"));
      EXPECT_THAT(error.info().where, HasSubstr(folder.path().string()));
    }
    EXPECT_EQ(read_text(folder / "a"), fail_at < 5 ? "old" : "1234567") << fail_at;
    EXPECT_FALSE(std::filesystem::exists(folder / "a.partial")) << fail_at;
  }
}

TEST(Durable, AnInterruptedCallIsRepeated) {
  for (const int fail_at : {0, 2, 3, 5}) {
    const test::TempFolder folder;
    FailingCalls calls(fail_at, EINTR);
    write_durably(folder / "a", as_bytes("1234567"), calls);
    EXPECT_EQ(read_text(folder / "a"), "1234567");
  }
}

TEST(Durable, AMissingFolderIsAnErrorWithAFix) {
  const test::TempFolder folder;
  EXPECT_THROW(write_durably(folder / "no/a", as_bytes("x")), IoError);
}

// A child replaces the file over and over and is killed in the middle.
void kill_a_writer(const std::filesystem::path& path, std::chrono::milliseconds after) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (int i = 0;; ++i) {
      const std::string text(static_cast<std::size_t>(50000 + i), static_cast<char>('a' + i % 26));
      write_durably(path, as_bytes(text));
    }
  }
  std::this_thread::sleep_for(after);
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
}

TEST(Durable, AKilledWriterNeverLeavesAMixedFile) {
  const test::TempFolder folder;
  write_durably(folder / "a", as_bytes(std::string(50000, 'a')));
  for (const int after : {3, 10, 20, 40, 80}) {
    kill_a_writer(folder / "a", std::chrono::milliseconds(after));
    const std::string text = read_text(folder / "a");
    ASSERT_GE(text.size(), 50000u);
    EXPECT_EQ(text[0], static_cast<char>('a' + (text.size() - 50000) % 26));
    EXPECT_TRUE(std::ranges::all_of(text, [&](char c) { return c == text[0]; }));
  }
}

}  // namespace
}  // namespace capstan::io

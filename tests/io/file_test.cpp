#include "capstan/io/file.h"

#include <utility>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include "capstan/base/error.h"
#include "capstan/io/aligned_buffer.h"
#include "capstan/io/failure.h"
#include "tests/support/temp_folder.h"

namespace capstan::io {
namespace {

using testing::AllOf;
using testing::HasSubstr;

ErrorInfo error_of_open(const std::filesystem::path& path, const OpenOptions& options) {
  try {
    (void)File::open(path, options);
  } catch (const IoError& error) {
    return error.info();
  }
  return {.what = "no error"};
}

TEST(File, AMissingFileIsAnErrorWithPathErrnoAndFix) {
  const test::TempFolder folder;
  const ErrorInfo info = error_of_open(folder / "no/such", {});
  EXPECT_THAT(info.what, HasSubstr("open failed: ENOENT"));
  EXPECT_EQ(info.where, (folder / "no/such").string());
  EXPECT_THAT(info.fix, HasSubstr("mkdir -p " + (folder / "no").string()));
}

TEST(File, AFolderIsNotAFile) {
  const test::TempFolder folder;
  EXPECT_THAT(error_of_open(folder.path(), {.access = Access::create}).what, HasSubstr("EISDIR"));
}

TEST(File, CreateEmptiesAnExistingFileAndReadWriteKeepsIt) {
  const test::TempFolder folder;
  File::open(folder / "a", {.access = Access::create}).resize(100);
  EXPECT_EQ(File::open(folder / "a", {.access = Access::read_write}).size_bytes(), 100);
  EXPECT_EQ(File::open(folder / "a", {.access = Access::create}).size_bytes(), 0);
}

TEST(File, ReserveTakesTheSpaceAtOnce) {
  const test::TempFolder folder;
  File file = File::open(folder / "a", {.access = Access::create, .direct = true});
  file.reserve(1 << 20);
  EXPECT_EQ(file.size_bytes(), 1 << 20);
}

TEST(File, ReserveBeyondTheDiskIsENOSPCOrTooBig) {
  const test::TempFolder folder;
  File file = File::open(folder / "a", {.access = Access::create});
  try {
    file.reserve(std::int64_t{1} << 52);
    GTEST_SKIP() << "this file system cannot reserve space";
  } catch (const IoError& error) {
    EXPECT_THAT(error.info().what, testing::AnyOf(HasSubstr("ENOSPC"), HasSubstr("EFBIG")));
    EXPECT_EQ(error.info().where, (folder / "a").string());
  }
}

TEST(File, AMovedFileClosesItsDescriptorsOnce) {
  const test::TempFolder folder;
  int fd = -1;
  {
    File first = File::open(folder / "a", {.access = Access::create, .direct = true});
    fd = first.descriptor()->fd();
    const File second = std::move(first);
    EXPECT_NE(::fcntl(fd, F_GETFD), -1);
  }
  EXPECT_EQ(::fcntl(fd, F_GETFD), -1);
}

TEST(File, DescriptorsAreNotInheritedByOtherPrograms) {
  const test::TempFolder folder;
  const File file = File::open(folder / "a", {.access = Access::create, .direct = true});
  EXPECT_NE(::fcntl(file.descriptor()->fd(), F_GETFD) & FD_CLOEXEC, 0);
}

// A folder in the making is gone when its maker has failed.
TEST(Failure, OfAFullDiskNamesAFolderThatLasts) {
  const auto fix = [](const char* file) {
    return io_failure({.verb = "write", .file = file}, ENOSPC).info().fix;
  };
  EXPECT_THAT(fix("saved/.step3.partial/w"), HasSubstr("(df -h saved)"));
  EXPECT_THAT(fix(".step3.partial/w"), HasSubstr("(df -h .)"));
  EXPECT_THAT(fix("../w"), HasSubstr("(df -h ..)"));
  EXPECT_THAT(fix("/a/b/w"), HasSubstr("(df -h /a/b)"));
}

TEST(Failure, EveryCommonErrnoHasNameTextAndFix) {
  for (const int number : {ENOSPC, EIO, EACCES, EROFS, EMFILE, EDQUOT, EFBIG, ENODEV, ELOOP}) {
    const IoError error = io_failure({.verb = "write", .file = "/a/b", .offset = 7}, number);
    EXPECT_THAT(error.info().what, HasSubstr(errno_text(number)));
    EXPECT_EQ(error.info().where, "/a/b, offset 7");
    EXPECT_FALSE(error.info().fix.empty()) << number;
  }
  EXPECT_EQ(errno_text(ENOSPC), "ENOSPC (No space left on device)");
}

TEST(AlignedBuffer, IsAlignedAndHasExactlyTheSizeAskedFor) {
  for (const std::int64_t bytes : {0, 1, 4095, 4096, 4097}) {
    AlignedBuffer buffer(bytes);
    EXPECT_EQ(std::ssize(buffer.bytes()), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.bytes().data()) % kDirectIoAlignBytes, 0u);
  }
}

TEST(AlignedBuffer, TooLargeABufferIsAnErrorWithAFix) {
  EXPECT_THROW(AlignedBuffer(std::int64_t{1} << 60), IoError);
}

}  // namespace
}  // namespace capstan::io

#include "capstan/checkpoint/save.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/checkpoint/copy.h"
#include "capstan/checkpoint/file_bytes.h"
#include "capstan/checkpoint/folder.h"
#include "capstan/checkpoint/verify.h"
#include "tests/checkpoint/checkpoint_fixture.h"

namespace capstan::checkpoint {
namespace {

using testing::HasSubstr;

TEST(Save, EveryByteComesBackForAnyNumberOfRanksAndFiles) {
  for (const int ranks : {1, 2, 3, 5}) {
    for (const std::int64_t max_file_bytes : {std::int64_t{1} << 30, std::int64_t{6000}}) {
      const test::TempFolder folder;
      const Committed committed = save({.folder = folder.path(),
                                        .ranks = ranks,
                                        .rows = 20'000,
                                        .max_file_bytes = max_file_bytes});
      EXPECT_TRUE(holds_version(committed.folder, 1)) << ranks << " ranks";
      EXPECT_EQ(verify(committed.folder).problems, std::vector<std::string>{});
      EXPECT_EQ(latest_tag(folder.path()), "step1");
    }
  }
}

TEST(Save, AnyRangeOfATensorCanBeRead) {
  const test::TempFolder folder;
  Reader reader(save({.folder = folder.path(), .ranks = 3, .rows = 20'000}).folder);
  const IndexTensor& tensor = reader.index().tensor(kMasterColumn, "a");
  ASSERT_GT(tensor.slices.front().blocks.size(), 6U);
  for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 4},
                                   {16380, 16390},
                                   {79'996, 80'004},
                                   {100'000, 240'000},
                                   {8, 8}}) {
    std::int64_t next = begin;
    reader.read(tensor, begin, end, [&](std::int64_t at, std::span<const std::byte> bytes) {
      EXPECT_EQ(at, next);
      EXPECT_EQ(bytes.front(), test_byte(at, 1));
      next += std::ssize(bytes);
    });
    EXPECT_EQ(next, end);
  }
}

TEST(Save, TheSameTagIsReplacedAndOldOnesGo) {
  const test::TempFolder folder;
  for (int version = 1; version <= 3; ++version) {
    save({.folder = folder.path(), .tag = "same", .version = version});
    EXPECT_TRUE(holds_version(folder / "same", version));
  }
  for (int version = 4; version <= 7; ++version) {
    save({.folder = folder.path(),
          .tag = "v" + std::to_string(version),
          .version = version,
          .keep_last = 2});
  }
  std::vector<std::string> tags;
  for (const Found& found : list_checkpoints(folder.path())) tags.push_back(found.tag);
  EXPECT_THAT(tags, testing::ElementsAre("v7", "v6"));
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    names.push_back(entry.path().filename().string());
  }
  EXPECT_THAT(names, testing::UnorderedElementsAre("v7", "v6", "latest"));
}

TEST(Save, OneBesideTheRunIsNeverTheNewest) {
  const test::TempFolder folder;
  save({.folder = folder.path(), .tag = "step1", .version = 1});
  save({.folder = folder.path(), .tag = "aside", .version = 2, .latest = false});
  EXPECT_EQ(newest_complete(folder.path())->tag, "step1");
  EXPECT_EQ(latest_tag(folder.path()), "step1");
  EXPECT_TRUE(holds_version(folder / "aside", 2));
}

TEST(Save, AFlippedBitIsRefusedByTheTensorsName) {
  const test::TempFolder folder;
  const auto checkpoint = save({.folder = folder.path()}).folder;
  Reader before(checkpoint);
  const IndexTensor& tensor = before.index().tensor("optimizer.exp_avg", "b");
  const StoredSlice& slice = tensor.slices.front();
  flip_bit(checkpoint / slice.file, slice.begin + 5);
  EXPECT_THAT(error_text([&] { holds_version(checkpoint, 1); }),
              HasSubstr("tensor 'b' is damaged"));
  const Verified verified = verify(checkpoint);
  ASSERT_EQ(verified.problems.size(), 1U);
  EXPECT_THAT(verified.problems.front(), HasSubstr("optimizer.exp_avg.safetensors"));
}

// The bytes are as they were, but another reader would take them for something else.
TEST(Save, AHeaderThatContradictsTheIndexIsFound) {
  const test::TempFolder folder;
  const auto checkpoint = save({.folder = folder.path()}).folder;
  const auto file = checkpoint / "master.safetensors";
  std::ifstream in(file, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const std::size_t dtype = bytes.find("F32");
  ASSERT_NE(dtype, std::string::npos);
  bytes.replace(dtype, 3, "I32");
  std::ofstream(file, std::ios::binary) << bytes;
  EXPECT_THAT(verify(checkpoint).problems,
              testing::ElementsAre(HasSubstr("another place or shape than the index says")));
}

TEST(Save, ADamagedIndexOrConfigIsFound) {
  const test::TempFolder folder;
  const auto checkpoint = save({.folder = folder.path()}).folder;
  flip_bit(checkpoint / "config.json", 0);
  EXPECT_THAT(verify(checkpoint).problems, testing::ElementsAre(HasSubstr("config.json")));
  flip_bit(checkpoint / kIndexFile, 40);
  EXPECT_THAT(error_text([&] { const Reader reader(checkpoint); }),
              HasSubstr("the index is damaged"));
  EXPECT_THAT(error_text([&] { choose_newest(folder.path()); }), HasSubstr("the index is damaged"));
}

TEST(Save, AMissingOrShortFileMakesTheOneBeforeItTheNewest) {
  const test::TempFolder folder;
  save({.folder = folder.path(), .tag = "step1", .version = 1});
  const auto second = save({.folder = folder.path(), .tag = "step2", .version = 2}).folder;
  EXPECT_EQ(newest_complete(folder.path())->tag, "step2");
  std::filesystem::resize_file(second / "master.safetensors", 300);
  EXPECT_THAT(look_at(second).problem, HasSubstr("master.safetensors has 300 bytes"));
  EXPECT_EQ(newest_complete(folder.path())->tag, "step1");
  std::filesystem::remove(second / "master.safetensors");
  EXPECT_THAT(look_at(second).problem, HasSubstr("master.safetensors is missing"));
}

TEST(Save, TheLastThatWasSavedIsTheNewestWhateverItsName) {
  const test::TempFolder folder;
  save({.folder = folder.path(), .tag = "second", .version = 1});
  save({.folder = folder.path(), .tag = "first", .version = 2});
  EXPECT_EQ(newest_complete(folder.path())->tag, "first");
}

TEST(Save, WhatAKilledSaveLeftIsRemovedByTheNext) {
  const test::TempFolder folder;
  const std::string left = partial_path({.folder = folder.path(), .tag = "step1"}).string() + "0";
  std::filesystem::create_directories(left);  // as by a process with another number
  save({.folder = folder.path(), .tag = "step2", .version = 2});
  EXPECT_FALSE(std::filesystem::exists(left));
  EXPECT_EQ(newest_complete(folder.path())->tag, "step2");
}

TEST(Save, ARankThatCouldNotWriteStopsTheCommitWithItsOwnWords) {
  const test::TempFolder folder;
  save({.folder = folder.path(), .tag = "step1", .version = 1});
  io::DurableCalls calls;
  Disk disk = system_disk(calls);
  const auto columns = test_columns();
  const FilePlan plan = plan_files(columns, 1 << 30);
  const SaveRequest request{.folder = folder.path(), .tag = "step2"};
  const auto partial = begin_save(request, plan, disk);
  write_part(partial, 0, {}, disk);
  write_part(partial, 1, {.blocks = {}, .error = "the disk of rank 1 is full"}, disk);
  EXPECT_THAT(error_text([&] { commit_save(partial, request, plan, 2, disk); }),
              HasSubstr("rank 1 did not write its part: the disk of rank 1 is full"));
  EXPECT_FALSE(std::filesystem::exists(partial));
  EXPECT_TRUE(holds_version(newest_complete(folder.path())->folder, 1));
}

TEST(Save, TagsMustBeNamesOfFolders) {
  const test::TempFolder folder;
  for (const std::string tag : {"", "a/b", ".hidden", "latest"}) {
    EXPECT_THAT(error_text([&] { save({.folder = folder.path(), .tag = tag}); }),
                HasSubstr("cannot be a checkpoint's tag"));
  }
}

// A checkpoint whose state has this text of the client's.
std::filesystem::path save_with(const std::filesystem::path& folder, const std::string& client) {
  io::DurableCalls calls;
  Disk disk = system_disk(calls);
  const auto columns = test_columns();
  const FilePlan plan = plan_files(columns, 1 << 30);
  const SaveRequest request{.folder = folder,
                            .tag = "step1",
                            .state = {.progress = {{"steps", 1}}, .client_state = client}};
  const auto partial = begin_save(request, plan, disk);
  PieceWriter writer(plan, partial, {}, disk);
  for (const Piece& piece : test_pieces(columns, 0, 1, 1)) writer.write(piece);
  write_part(partial, 0, writer.finish(), disk);
  return commit_save(partial, request, plan, 1, disk).folder;
}

TEST(Texts, LargeOrDeepOnesHaveAFileOfTheirOwnAndComeBack) {
  std::string many = "{\"numbers\": [";
  for (int i = 0; i < 200'000; ++i) many += std::to_string(i) + ", ";
  many += "0]}";
  const std::string deep = "{\"deep\": " + std::string(150, '[') + std::string(150, ']') + "}";
  for (const std::string& client : {many, deep}) {
    const test::TempFolder folder;
    const auto checkpoint = save_with(folder.path(), client);
    EXPECT_EQ(Reader(checkpoint).index().state.client_state, client);
    EXPECT_EQ(verify(checkpoint).problems, std::vector<std::string>{});
    EXPECT_LT(std::filesystem::file_size(checkpoint / kIndexFile), 10'000U);
    EXPECT_EQ(read_text_file(checkpoint / "state.client_state.json"), client);
    // A copy has it in the same way.
    Reader reader(checkpoint);
    const Committed copy = copy_checkpoint(reader, {folder.path(), "copy"});
    EXPECT_EQ(Reader(copy.folder).index().state.client_state, client);
    flip_bit(checkpoint / "state.client_state.json", 1);
    EXPECT_THAT(error_text([&] { const Reader damaged(checkpoint); }),
                HasSubstr("state.client_state.json is damaged"));
    EXPECT_THAT(verify(checkpoint).problems, testing::Contains(HasSubstr("client_state")));
  }
}

TEST(Texts, SmallOnesStandInTheIndexAsOlderProgramsReadIt) {
  const test::TempFolder folder;
  const std::string client = R"({"text": "[[[[{{{{\"", "epoch": 3})";
  const auto checkpoint = save_with(folder.path(), client);
  EXPECT_THAT(read_text_file(checkpoint / kIndexFile), HasSubstr("\"version\": 1"));
  EXPECT_EQ(Reader(checkpoint).index().state.client_state, client);
}

// The last write of a small file changes a byte, as a failing disk or memory may.
struct LyingDisk : io::DurableCalls {
  explicit LyingDisk(std::string path) : path(std::move(path)) {}
  ssize_t pwrite(int fd, std::span<const std::byte> bytes, std::int64_t offset) override {
    const auto name = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd));
    if (name.filename() != path) return io::DurableCalls::pwrite(fd, bytes, offset);
    std::vector<std::byte> wrong(bytes.begin(), bytes.end());
    wrong.back() = std::byte{'?'};
    return io::DurableCalls::pwrite(fd, wrong, offset);
  }
  std::string path;
};

TEST(Save, WhatDoesNotReadBackIsNotSaved) {
  for (const char* const file : {"index.json", "config.json"}) {
    const test::TempFolder folder;
    save({.folder = folder.path(), .tag = "step1", .version = 1});
    LyingDisk calls(file);
    Disk disk = system_disk(calls);
    const std::string error =
        error_text([&] { save({.folder = folder.path(), .tag = "step2", .version = 2}, disk); });
    EXPECT_THAT(error, HasSubstr("cannot be read back"));
    EXPECT_TRUE(holds_version(newest_complete(folder.path())->folder, 1));
  }
}

}  // namespace
}  // namespace capstan::checkpoint

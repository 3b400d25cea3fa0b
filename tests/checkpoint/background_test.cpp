#include "capstan/checkpoint/background_save.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <new>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/checkpoint/folder.h"
#include "capstan/checkpoint/memory_ahead.h"
#include "capstan/checkpoint/reader.h"
#include "tests/checkpoint/checkpoint_fixture.h"

namespace capstan::checkpoint {
namespace {

constexpr std::int64_t kRows = 20'000;

// Live memory that an update overwrites: every piece reads `version` when it is filled.
std::vector<Piece> live_pieces(const std::atomic<int>& version, int rank, int ranks,
                               std::chrono::milliseconds slow = {}) {
  std::vector<Piece> pieces = test_pieces(test_columns(kRows), rank, ranks, 0);
  for (Piece& piece : pieces) {
    piece.fill = [&version, slow](std::int64_t begin, std::span<std::byte> into) {
      for (std::size_t i = 0; i < into.size(); ++i) {
        into[i] = test_byte(begin + static_cast<std::int64_t>(i), version);
      }
      std::this_thread::sleep_for(slow);
    };
  }
  return pieces;
}

BackgroundJob job_of(const std::filesystem::path& folder, std::vector<Piece> pieces, int rank,
                     int ranks) {
  BackgroundJob job;
  job.request = {.folder = folder, .tag = "step1", .state = {.progress = {{"steps", 1}}}};
  job.plan = plan_files(test_columns(kRows), std::int64_t{1} << 30);
  job.partial = partial_path(job.request);
  job.pieces = std::move(pieces);
  job.rank = rank;
  job.ranks = ranks;
  job.buffers = {.bytes = 64 << 10};
  job.copy_bytes = 128 << 10;
  job.timeout = std::chrono::seconds(20);
  return job;
}

TEST(BackgroundSave, HoldsTheValuesOfItsBeginWhateverTheUpdateDoes) {
  for (const int slow_ms : {0, 2}) {
    const test::TempFolder folder;
    std::atomic<int> version = 1;
    std::vector<std::unique_ptr<BackgroundSave>> saves;
    for (const int rank : {0, 1}) {
      saves.push_back(std::make_unique<BackgroundSave>(
          job_of(folder.path(), live_pieces(version, rank, 2, std::chrono::milliseconds(slow_ms)),
                 rank, 2)));
    }
    for (auto& save : saves) save->release_memory();
    version = 2;  // the update
    for (auto& save : saves) save->wait();
    EXPECT_TRUE(holds_version(folder / "step1", 1));
    EXPECT_EQ(newest_complete(folder.path())->tag, "step1");
    EXPECT_EQ(saves.front()->committed()->sequence, 1);
    EXPECT_GT(saves.front()->stats().copied_bytes + saves.back()->stats().copied_bytes, 0);
  }
}

// Also where the disk is faster than the device: the second save finds all memory that it needs.
TEST(BackgroundSave, CopiesAllOfADeviceAside) {
  const test::TempFolder folder;
  std::atomic<int> version = 1;
  std::vector<Piece> pieces = live_pieces(version, 0, 1, std::chrono::milliseconds(2));
  std::int64_t bytes = 0;
  for (Piece& piece : pieces) {
    piece.on_device = true;
    bytes += piece.end - piece.begin;
  }
  BackgroundSave save(job_of(folder.path(), std::move(pieces), 0, 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the writer is at work
  save.release_memory();
  version = 2;
  save.wait();
  EXPECT_EQ(save.stats().copied_bytes, bytes);
  EXPECT_TRUE(holds_version(folder / "step1", 1));
}

// What stands ready before a save is what the save takes: none of it is new.
TEST(BackgroundSave, FindsTheMemoryThatWasTakenAhead) {
  const test::TempFolder folder;
  std::atomic<int> version = 1;
  std::vector<Piece> pieces = live_pieces(version, 0, 1);
  for (Piece& piece : pieces) piece.on_device = true;
  BackgroundJob job = job_of(folder.path(), std::move(pieces), 0, 1);
  std::mutex mutex;
  std::multiset<std::int64_t> idle;
  int fresh = 0;
  job.take_memory = [&](std::int64_t bytes) -> std::shared_ptr<void> {
    const std::lock_guard lock(mutex);
    const auto found = idle.find(bytes);
    found == idle.end() ? void(++fresh) : void(idle.erase(found));
    return {new std::byte[static_cast<std::size_t>(bytes)], [&, bytes](void* memory) {
              delete[] static_cast<std::byte*>(memory);
              const std::lock_guard lock(mutex);
              idle.insert(bytes);
            }};
  };
  const std::vector<std::int64_t> sizes = device_copy_sizes(job.pieces, job.copy_bytes);
  EXPECT_FALSE(sizes.empty());
  MemoryAhead(sizes, job.take_memory).wait();
  EXPECT_EQ(fresh, std::ssize(sizes));
  EXPECT_EQ(idle, std::multiset<std::int64_t>(sizes.begin(), sizes.end()));
  BackgroundSave save(std::move(job));
  save.release_memory();
  save.wait();
  EXPECT_EQ(fresh, std::ssize(sizes));
}

TEST(MemoryAhead, GivesBackWhatItHasWhenItMustEndOrNoMoreIsThere) {
  std::atomic<int> held = 0;
  std::atomic<int> taken = 0;
  int last = 5;
  const auto take = [&](std::int64_t) -> std::shared_ptr<void> {
    if (taken == last) throw std::bad_alloc();
    ++taken;
    ++held;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return {&held, [&](void*) { --held; }};
  };
  MemoryAhead(std::vector<std::int64_t>(10, 1), take).wait();
  EXPECT_EQ(taken, 5);
  EXPECT_EQ(held, 0);
  last = 1'000'000;
  {
    const MemoryAhead not_wanted_any_more(std::vector<std::int64_t>(1'000'000, 1), take);
  }
  EXPECT_LT(taken, 1'000'000);
  EXPECT_EQ(held, 0);
}

// Plain host memory, enough of it that several threads copy it aside.
TEST(BackgroundSave, CopiesPlainMemoryAsideBeforeItChanges) {
  const test::TempFolder folder;
  constexpr std::int64_t kBytes = std::int64_t{80} << 20;
  std::vector<std::byte> memory(kBytes);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i % 251);
  const std::vector<std::byte> before = memory;
  const std::vector<ColumnSpec> columns = {{kModelColumn, {{"w", Element::u8, {kBytes}}}}};
  BackgroundJob job;
  job.request = {.folder = folder.path(), .tag = "step1"};
  job.plan = plan_files(columns, kMaxFileBytes);
  job.partial = partial_path(job.request);
  job.copy_bytes = kBytes;
  job.pieces = {{.column = kModelColumn,
                 .tensor = "w",
                 .end = kBytes,
                 .fill =
                     [&](std::int64_t begin, std::span<std::byte> into) {
                       std::memcpy(into.data(), memory.data() + begin, into.size());
                     },
                 .host = memory.data()}};
  BackgroundSave save(std::move(job));
  save.release_memory();
  std::fill(memory.begin(), memory.end(), std::byte{255});  // the update
  save.wait();
  EXPECT_GT(save.stats().copied_bytes, 0);
  Reader reader(folder / "step1");
  std::int64_t wrong = 0;
  reader.read(*reader.find(kModelColumn, "w"), 0, kBytes,
              [&](std::int64_t at, std::span<const std::byte> bytes) {
                wrong += std::memcmp(bytes.data(), before.data() + at, bytes.size()) == 0 ? 0 : 1;
              });
  EXPECT_EQ(wrong, 0);
}

TEST(BackgroundSave, AnErrorShowsAtTheNextLookAndNothingIsSaved) {
  const test::TempFolder folder;
  const std::atomic<int> version = 1;
  std::vector<Piece> failing = live_pieces(version, 1, 2);
  failing.back().fill = [](std::int64_t, std::span<std::byte>) {
    throw IoError({.what = "the memory of rank 1 is gone"});
  };
  BackgroundSave first(job_of(folder.path(), live_pieces(version, 0, 2), 0, 2));
  BackgroundSave second(job_of(folder.path(), std::move(failing), 1, 2));
  EXPECT_THAT(error_text([&] { second.wait(); }), testing::HasSubstr("rank 1 is gone"));
  EXPECT_THAT(error_text([&] { first.wait(); }),
              testing::HasSubstr("the memory of rank 1 is gone"));
  EXPECT_EQ(newest_complete(folder.path()), std::nullopt);
}

TEST(BackgroundSave, EndsWithItsOwnerWithoutWaitingForOthers) {
  const test::TempFolder folder;
  const std::atomic<int> version = 1;
  const auto begin = std::chrono::steady_clock::now();
  {
    BackgroundSave alone(job_of(folder.path(), live_pieces(version, 0, 2), 0, 2));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));
  EXPECT_EQ(newest_complete(folder.path()), std::nullopt);
}

}  // namespace
}  // namespace capstan::checkpoint

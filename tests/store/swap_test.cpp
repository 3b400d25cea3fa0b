// Files that serve as memory: what is in them, when they go, and what a failing disk does.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/io/ring.h"
#include "capstan/store/pool.h"
#include "capstan/store/swap_files.h"
#include "capstan/store/swap_stream.h"
#include "tests/support/faulty_queue.h"
#include "tests/support/temp_folder.h"

namespace capstan::store {
namespace {

using std::filesystem::path;
using testing::HasSubstr;

int files_in(const path& folder) {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const IoError& error) {
    return error.what();
  }
  return "no error";
}

class SwapTest : public testing::Test {
 protected:
  SwapOptions options(std::int64_t needed = 1 << 20) const {
    return {.folders = {folder_.path() / "a", folder_.path() / "b"},
            .needed_bytes = needed,
            .label = "optimizer state of rank 3",
            .layout_hash = 0xabcd};
  }
  test::TempFolder folder_;
  NullLogger logger_;
};

TEST_F(SwapTest, CarriesAHeaderAndGoesWithItsOwner) {
  {
    SwapFiles swap(options());
    EXPECT_EQ(files_in(folder_.path() / "a"), 1);
    EXPECT_EQ(files_in(folder_.path() / "b"), 1);
    const auto file = *std::filesystem::directory_iterator(folder_.path() / "a");
    std::ifstream in(file.path());
    std::string header(200, '\0');
    in.read(header.data(), 200);
    EXPECT_THAT(header, HasSubstr("capstan swap file 1\nengine "));
    EXPECT_THAT(header, HasSubstr("optimizer state of rank 3\nlayout 000000000000abcd\n"));
    EXPECT_EQ(remove_left_swap_files(folder_.path() / "a"), 0);  // it is held
  }
  EXPECT_EQ(files_in(folder_.path() / "a"), 0);
  EXPECT_EQ(files_in(folder_.path() / "b"), 0);
}

TEST_F(SwapTest, RemovesWhatAKilledProcessLeft) {
  const pid_t child = ::fork();
  if (child == 0) {
    SwapFiles swap(options());
    (void)swap.take(10'000);
    ::kill(::getpid(), SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(files_in(folder_.path() / "a"), 1);
  SwapFiles next(options());
  EXPECT_EQ(files_in(folder_.path() / "a"), 1);  // its own
  EXPECT_EQ(files_in(folder_.path() / "b"), 1);
}

TEST_F(SwapTest, SaysBeforeItStartsThatADiskIsTooSmall) {
  const std::string message = message_of([&] { SwapFiles swap(options(std::int64_t{1} << 60)); });
  EXPECT_THAT(message, HasSubstr("the optimizer state of rank 3"));
  EXPECT_THAT(message, HasSubstr((folder_.path() / "a").string()));
  EXPECT_EQ(files_in(folder_.path() / "a"), 0);
}

TEST_F(SwapTest, UsesAllFoldersAndKnowsWhereMemoryLies) {
  SwapFiles swap(options());
  auto* const first = static_cast<std::byte*>(swap.take(5000).get());
  auto* const second = static_cast<std::byte*>(swap.take(5000).get());
  const auto at = [&](const std::byte* byte) { return swap.place_of(byte); };
  EXPECT_NE(at(first).file, at(second).file);
  EXPECT_EQ(at(first + 17).offset, at(first).offset + 17);
  std::memset(first, 7, 5000);
  swap.write_back();
  EXPECT_EQ(std::to_integer<int>(first[4999]), 7);
  EXPECT_EQ(std::to_integer<int>(second[0]), 0);
}

// Columns of several tiles, each element raised by one through the stream, twice.
TEST_F(SwapTest, StreamChangesWhatTheMappingShows) {
  // Tiles that are whole pages go past the page cache, others do not.
  const std::vector<std::pair<int, int>> cases = {{1, 1500}, {3, 2048}, {6, 1024}};
  for (const auto& [buffers, elems] : cases) {
    SwapFiles swap(options());
    io::Ring ring({.block_bytes = 4096}, logger_);
    SwapStream stream(swap, ring, buffers);
    constexpr int kTiles = 9;
    std::vector<float*> columns;
    for (int c = 0; c < 3; ++c) {
      columns.push_back(static_cast<float*>(swap.take(std::int64_t{4} * elems * kTiles).get()));
      for (int i = 0; i < elems * kTiles; ++i) columns.back()[i] = static_cast<float>(i + c);
    }
    for (int pass = 0; pass < 2; ++pass) {
      std::vector<Spans> tiles(kTiles);
      for (int t = 0; t < kTiles; ++t) {
        for (float* const column : columns) {
          tiles[static_cast<std::size_t>(t)].emplace_back(
              reinterpret_cast<std::byte*>(column + t * elems),
              static_cast<std::size_t>(elems) * sizeof(float));
        }
      }
      stream.start(tiles);
      for (int t = 0; t < kTiles; ++t) {
        for (std::byte* const values : stream.next()) {
          for (int i = 0; i < elems; ++i) reinterpret_cast<float*>(values)[i] += 1;
        }
      }
      stream.finish();
    }
    int wrong = 0;
    for (int c = 0; c < 3; ++c) {
      for (int i = 0; i < elems * kTiles; ++i) {
        wrong += static_cast<int>(columns[static_cast<std::size_t>(c)][i] !=
                                  static_cast<float>(i + c + 2));
      }
    }
    EXPECT_EQ(wrong, 0) << buffers;
  }
}

// Tiles of all sizes pass through the memory of three, each element raised by one.
TEST_F(SwapTest, StreamTakesTilesOfAnySizes) {
  constexpr std::int64_t kPage = 4096;
  for (unsigned seed = 1; seed <= 5; ++seed) {
    SwapFiles swap(options());
    io::Ring ring({.block_bytes = kPage}, logger_);
    SwapStream stream(swap, ring, 3);
    std::mt19937 random(seed);
    std::vector<Spans> tiles(40);
    for (Spans& tile : tiles) {
      const std::int64_t bytes = random() % 3 == 0 ? 7 * kPage : 1 + random() % (2 * kPage);
      auto* const memory = static_cast<std::byte*>(swap.take(bytes).get());
      std::memset(memory, static_cast<int>(seed), static_cast<std::size_t>(bytes));
      tile.emplace_back(memory, static_cast<std::size_t>(bytes));
    }
    stream.start(tiles);
    for (const Spans& tile : tiles) {
      std::byte* const values = stream.next().front();
      for (std::size_t i = 0; i < tile.front().size(); ++i) {
        values[i] = std::byte(std::to_integer<int>(values[i]) + 1);
      }
    }
    stream.finish();
    for (const Spans& tile : tiles) {
      EXPECT_THAT(tile.front(), testing::Each(std::byte(seed + 1))) << seed;
    }
  }
}

// A small tile takes only its own room: those after a large one are all on their way at once.
TEST_F(SwapTest, StreamReadsAsFarAheadAsItsMemoryHolds) {
  constexpr std::size_t kPage = 4096;
  SwapFiles swap(options());
  std::atomic<int> reads{0};
  const test::FaultPlan count = [&](std::int64_t, const io::RawOp& op) {
    reads += static_cast<int>(op.kind == io::OpKind::read);
    return test::Fault{};
  };
  io::Ring ring({.block_bytes = 8 * kPage}, logger_, test::with_faults(io::open_queue({}), count));
  SwapStream stream(swap, ring, 3);
  auto* const memory = static_cast<std::byte*>(swap.take(64 * kPage).get());
  std::vector<Spans> tiles = {{{memory, 8 * kPage}}};
  for (std::size_t i = 0; i < 20; ++i) tiles.push_back({{memory + (8 + i) * kPage, kPage}});
  stream.start(tiles);
  stream.finish();
  EXPECT_EQ(reads, 1 + 16);
}

// A disk that fails once at the n-th operation: an error with the file's name, or (for errors that
// pass) the right result; never a hang.
TEST_F(SwapTest, NamesTheFileThatFailed) {
  for (const int error : {EIO, ENOSPC}) {
    for (std::int64_t n = 0; n < 8; n += 3) {
      SwapFiles swap(options());
      const test::FaultPlan plan = [=](std::int64_t at, const io::RawOp&) {
        return test::Fault{.error = at == n ? error : 0};
      };
      io::Ring ring({.block_bytes = 4096}, logger_,
                    test::with_faults(io::open_queue({.block_bytes = 4096}), plan));
      SwapStream stream(swap, ring, 3);
      auto* const memory = static_cast<std::byte*>(swap.take(8 * 4096).get());
      const std::string message = message_of([&] {
        stream.start({{{memory, 2 * 4096}}, {{memory + 2 * 4096, 2 * 4096}}});
        stream.next();
        stream.next();
        stream.finish();
      });
      EXPECT_THAT(message, HasSubstr(kSwapPrefix)) << error << " at " << n;
      EXPECT_THAT(message, HasSubstr(error == EIO ? "EIO" : "ENOSPC"));
    }
  }
}

// What is written behind the last use fails unseen: whoever needs it next is told.
TEST_F(SwapTest, NamesTheFileOfAWriteThatNobodyWaitedFor) {
  SwapFiles swap(options());
  const test::FaultPlan plan = [](std::int64_t, const io::RawOp& op) {
    return test::Fault{.error = op.kind == io::OpKind::write ? EIO : 0};
  };
  io::Ring ring({}, logger_, test::with_faults(io::open_queue({}), plan));
  SwapStream stream(swap, ring, 3);
  auto* const memory = static_cast<std::byte*>(swap.take(4096).get());
  stream.start({{{memory, 4096}}});
  stream.next();
  stream.write_used();
  EXPECT_THAT(message_of([&] { stream.start({{{memory, 4096}}}); }),
              testing::AllOf(HasSubstr(kSwapPrefix), HasSubstr("EIO")));
}

TEST_F(SwapTest, PoolCountsTheDisksBytes) {
  SwapFiles swap(options());
  Ledger ledger;
  const auto pool = Pool::of_disk(ledger, swap);
  const c10::DataPtr block = pool->take(12'345, MemoryKind::optimizer);
  EXPECT_EQ(ledger.now()[MemoryKind::optimizer], 12'345);
  EXPECT_EQ(swap.place_of(block.get()).offset % 4096, 0);
}

}  // namespace
}  // namespace capstan::store

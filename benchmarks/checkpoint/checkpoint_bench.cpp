// Claims: a save runs at the rate at which the same bytes reach a new file by themselves, and a
// save in the background blocks its caller for no longer than copying the state takes.
// checkpoint_bench [folder] [MiB]: the current folder and 512 MiB where nothing is said.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "capstan/base/guard.h"
#include "capstan/base/log.h"
#include "capstan/checkpoint/background_save.h"
#include "capstan/checkpoint/part.h"
#include "capstan/io/aligned_buffer.h"
#include "capstan/io/file.h"
#include "capstan/io/ring.h"
#include "capstan/io/throughput.h"

namespace capstan::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 5;
constexpr std::int64_t kTensorBytes = std::int64_t{32} << 20;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Tensors of 32 MiB over one array.
struct State {
  explicit State(std::int64_t bytes) : memory(static_cast<std::size_t>(bytes), std::byte{7}) {
    ColumnSpec column{kModelColumn, {}};
    for (std::int64_t at = 0; at < bytes; at += kTensorBytes) {
      column.tensors.push_back({fmt::format("t{}", at), Element::u8, {kTensorBytes}});
    }
    plan = plan_files({column}, kMaxFileBytes);
  }
  std::vector<Piece> pieces() const {
    std::vector<Piece> result;
    for (std::int64_t at = 0; at < std::ssize(memory); at += kTensorBytes) {
      result.push_back(
          {.column = kModelColumn,
           .tensor = fmt::format("t{}", at),
           .end = kTensorBytes,
           .fill =
               [from = memory.data() + at](std::int64_t begin, std::span<std::byte> into) {
                 std::memcpy(into.data(), from + begin, into.size());
               },
           .host = memory.data() + at});
    }
    return result;
  }
  std::vector<std::byte> memory;
  FilePlan plan;
};

// The bound: the same number of bytes to one new file, straight from aligned memory with several
// requests in flight, and synced.
double raw_seconds(const std::filesystem::path& folder, std::int64_t bytes) {
  constexpr std::size_t kChunks = 4;
  constexpr std::int64_t kChunkBytes = std::int64_t{16} << 20;
  std::vector<capstan::io::AlignedBuffer> chunks;
  chunks.reserve(kChunks);
  for (std::size_t i = 0; i < kChunks; ++i) {
    std::ranges::fill(chunks.emplace_back(kChunkBytes).bytes(), std::byte{7});
  }
  NullLogger silence;
  capstan::io::Ring ring({}, silence);
  std::vector<capstan::io::PendingIo> window(kChunks);
  const std::filesystem::path path = folder / "checkpoint_bench.raw";
  const auto begin = Clock::now();
  {
    auto file =
        capstan::io::File::open(path, {.access = capstan::io::Access::create, .direct = true});
    file.reserve(bytes);
    std::size_t turn = 0;
    for (std::int64_t at = 0; at < bytes; at += kChunkBytes, turn = (turn + 1) % kChunks) {
      window[turn].wait();
      window[turn] = ring.write(file, at, chunks[turn].bytes());
    }
    for (auto& pending : window) pending.wait();
    file.sync();
  }
  const double seconds = seconds_since(begin);
  std::filesystem::remove(path);
  return seconds;
}

double save_seconds(const State& state, const SaveRequest& request) {
  capstan::io::DurableCalls calls;
  Disk disk = system_disk(calls);
  const auto begin = Clock::now();
  const std::filesystem::path partial = begin_save(request, state.plan, disk);
  PieceWriter writer(state.plan, partial, {}, disk);
  for (const Piece& piece : state.pieces()) writer.write(piece);
  write_part(partial, 0, writer.finish(), disk);
  commit_save(partial, request, state.plan, 1, disk);
  return seconds_since(begin);
}

// Memory that is there already, as an engine's is from its second save on.
class Arena {
 public:
  explicit Arena(std::int64_t bytes) : memory_(static_cast<std::size_t>(bytes), std::byte{1}) {}
  void reset() { used_ = 0; }
  std::byte* take(std::int64_t bytes) { return memory_.data() + used_.fetch_add(bytes); }

 private:
  std::vector<std::byte> memory_;
  std::atomic<std::int64_t> used_ = 0;
};

// The worst case: the update comes at once, so that all is copied aside that is not written yet.
double blocked_seconds(const State& state, const SaveRequest& request, Arena& arena,
                       std::int64_t& copied) {
  arena.reset();
  const auto begin = Clock::now();
  BackgroundSave save({.request = request,
                       .plan = state.plan,
                       .partial = partial_path(request),
                       .pieces = state.pieces(),
                       .copy_bytes = std::ssize(state.memory),
                       .take_memory = [&arena](std::int64_t bytes) {
                         return std::shared_ptr<void>(arena.take(bytes), [](void*) {});
                       }});
  save.release_memory();
  const double blocked = seconds_since(begin);
  save.wait();
  copied = save.stats().copied_bytes;
  return blocked;
}

double copy_seconds(const State& state, Arena& arena, std::int64_t bytes) {
  arena.reset();
  const auto begin = Clock::now();
  std::memcpy(arena.take(bytes), state.memory.data(), static_cast<std::size_t>(bytes));
  return seconds_since(begin);
}

void run(const std::filesystem::path& folder, std::int64_t bytes) {
  const State state(bytes);
  Arena arena(bytes);
  const SaveRequest request{.folder = folder / "checkpoint_bench", .tag = "bench"};
  for (int round = 0; round < kRounds; ++round) {
    const auto disk = capstan::io::measure_throughput(
        {.folder = folder, .bytes = bytes, .paths = {}, .rounds = 1});
    const double old = disk.plain.write_gb_per_s;
    const double raw = static_cast<double>(bytes) / 1e9 / raw_seconds(folder, bytes);
    const double rate = static_cast<double>(bytes) / 1e9 / save_seconds(state, request);
    std::filesystem::remove_all(request.folder);
    std::int64_t copied = 0;
    const double blocked = blocked_seconds(state, request, arena, copied);
    const double copying = copy_seconds(state, arena, copied);
    fmt::print(
        "disk {:.2f} GB/s, over old bytes {:.2f}  save {:.2f} GB/s ({:.0f} %)  background: blocked "
        "{:.1f} ms, copied {} MiB, a copy of that takes {:.1f} ms ({:.2f} x)\n",
        raw, old, rate, 100 * rate / raw, 1e3 * blocked, copied >> 20, 1e3 * copying,
        blocked / copying);
    std::filesystem::remove_all(request.folder);
  }
}

int run_all(int argc, char** argv) {
  const std::int64_t mib = argc > 2 ? std::strtoll(argv[2], nullptr, 10) : 512;
  run(argc > 1 ? argv[1] : ".", mib << 20);
  return 0;
}

void report(const std::string& text) { fmt::print(stderr, "checkpoint_bench: {}\n", text); }

}  // namespace
}  // namespace capstan::checkpoint

int main(int argc, char** argv) {
  using capstan::checkpoint::report;
  return capstan::run_guarded<report>(capstan::checkpoint::run_all, argc, argv);
}

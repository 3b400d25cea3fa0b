// Claims: a save runs at the disk's own rate, and a save in the background blocks its caller for no
// longer than copying the state takes.
// checkpoint_bench [folder] [MiB]: the current folder and 512 MiB where nothing is said.
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
#include "capstan/checkpoint/background_save.h"
#include "capstan/checkpoint/part.h"
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
      result.push_back({kModelColumn, fmt::format("t{}", at), 0, kTensorBytes,
                        [from = memory.data() + at](std::int64_t begin, std::span<std::byte> into) {
                          std::memcpy(into.data(), from + begin, into.size());
                        }});
    }
    return result;
  }
  std::vector<std::byte> memory;
  FilePlan plan;
};

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
    const double raw = disk.plain.write_gb_per_s;
    const double rate = static_cast<double>(bytes) / 1e9 / save_seconds(state, request);
    std::filesystem::remove_all(request.folder);
    std::int64_t copied = 0;
    const double blocked = blocked_seconds(state, request, arena, copied);
    const double copying = copy_seconds(state, arena, copied);
    fmt::print(
        "disk {:.2f} GB/s  save {:.2f} GB/s ({:.0f} %)  background: blocked {:.1f} ms, "
        "copied {} MiB, a copy of that takes {:.1f} ms ({:.2f} x)\n",
        raw, rate, 100 * rate / raw, 1e3 * blocked, copied >> 20, 1e3 * copying, blocked / copying);
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

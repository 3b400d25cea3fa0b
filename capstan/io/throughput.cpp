#include "capstan/io/throughput.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>
#include <memory>
#include <system_error>

#include <fmt/format.h>
#include <unistd.h>

#include "capstan/base/log.h"
#include "capstan/io/aligned_buffer.h"
#include "capstan/io/failure.h"
#include "capstan/io/file.h"
#include "capstan/io/ring.h"
#include "capstan/io/space.h"

namespace capstan::io {
namespace {

// Chosen: requests as large as an offloaded state's, enough of them that the queue never runs dry.
constexpr std::int64_t kChunkBytes = std::int64_t{16} << 20;
constexpr std::size_t kChunks = 4;

struct Bench {
  File file;
  std::int64_t bytes = 0;
  std::int64_t block_bytes = 0;
  std::vector<std::shared_ptr<AlignedBuffer>> chunks;
};

// Bytes that no disk can compress or recognise as empty.
void fill_with_noise(std::span<std::byte> bytes, std::uint64_t seed) {
  std::uint64_t state = seed | 1;
  for (std::byte& byte : bytes) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    byte = static_cast<std::byte>(state);
  }
}

File open_nameless(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / fmt::format(".capstan-io-{}", ::getpid());
  File file = File::open(path, {.access = Access::create, .direct = true});
  std::error_code ignored;  // a folder that forbids removal keeps one empty file; no reason to stop
  std::filesystem::remove(path, ignored);
  return file;
}

Bench prepare(const ThroughputPlan& plan) {
  require_free_bytes(plan.folder, plan.bytes, "the measurement");
  const std::int64_t block = round_up_to_align(std::max<std::int64_t>(plan.options.block_bytes, 1));
  Bench bench{.file = open_nameless(plan.folder), .bytes = plan.bytes, .block_bytes = block};
  bench.file.reserve(plan.bytes);
  const std::int64_t chunk = std::max(kChunkBytes, block);
  for (std::size_t i = 0; i < kChunks; ++i) {
    bench.chunks.push_back(std::make_shared<AlignedBuffer>(chunk));
    fill_with_noise(bench.chunks.back()->bytes(), i + 1);
  }
  return bench;
}

// One transfer after the other, as the simplest program would do it, but in the same memory as the
// others use: one small buffer would stay in the processor's cache.
void transfer_plainly(Bench& bench, OpKind kind) {
  const Descriptor& file = *bench.file.descriptor();
  const std::int64_t chunk_bytes = bench.chunks[0]->size_bytes();
  for (std::int64_t offset = 0; offset < bench.bytes;) {
    const std::int64_t wanted = std::min(bench.block_bytes, bench.bytes - offset);
    const bool direct = file.direct() && wanted % kDirectIoAlignBytes == 0;
    const int fd = direct ? file.direct_fd() : file.fd();
    AlignedBuffer& chunk = *bench.chunks[static_cast<std::size_t>(offset / chunk_bytes) % kChunks];
    const std::int64_t begin = std::min(offset % chunk_bytes, chunk_bytes - wanted);
    const auto bytes =
        chunk.bytes().subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(wanted));
    const ssize_t moved = kind == OpKind::read ? ::pread(fd, bytes.data(), bytes.size(), offset)
                                               : ::pwrite(fd, bytes.data(), bytes.size(), offset);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) {
      throw io_failure({.verb = kind == OpKind::read ? "read" : "write",
                        .file = file.path(),
                        .offset = offset,
                        .bytes = wanted},
                       moved == 0 ? EIO : errno);
    }
    offset += moved;
  }
}

void transfer_through(Ring& ring, Bench& bench, OpKind kind) {
  std::vector<PendingIo> window(bench.chunks.size());
  std::size_t turn = 0;
  for (std::int64_t offset = 0; offset < bench.bytes;) {
    const std::size_t place = turn++ % window.size();
    window[place].wait();
    const std::shared_ptr<AlignedBuffer>& chunk = bench.chunks[place];
    const std::int64_t wanted = std::min(chunk->size_bytes(), bench.bytes - offset);
    const auto bytes = chunk->bytes().first(static_cast<std::size_t>(wanted));
    window[place] = kind == OpKind::read ? ring.read(bench.file, offset, bytes, chunk)
                                         : ring.write(bench.file, offset, bytes, chunk);
    offset += wanted;
  }
  for (PendingIo& pending : window) pending.wait();
}

double gb_per_s(std::int64_t bytes, const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  return static_cast<double>(bytes) / 1e9 / std::max(taken.count(), 1e-9);
}

Rates measure_once(Bench& bench, const std::function<void(OpKind)>& transfer) {
  Rates rates;
  rates.write_gb_per_s = gb_per_s(bench.bytes, [&] {
    transfer(OpKind::write);
    bench.file.sync();
  });
  bench.file.drop_cache();
  rates.read_gb_per_s = gb_per_s(bench.bytes, [&] { transfer(OpKind::read); });
  return rates;
}

Rates median(std::vector<Rates> rounds) {
  const auto middle = [&](double Rates::* figure) {
    std::ranges::sort(rounds, {}, figure);
    return rounds[rounds.size() / 2].*figure;
  };
  Rates rates;
  rates.write_gb_per_s = middle(&Rates::write_gb_per_s);
  rates.read_gb_per_s = middle(&Rates::read_gb_per_s);
  return rates;
}

struct Contender {
  PathRates result;            // of the plain one: only the rates
  std::unique_ptr<Ring> ring;  // null: plain, or not available
  std::vector<Rates> rounds;
};

Contender open_contender(const Options& options, IoPath path, Logger& logger) {
  Contender contender{.result = {.path = path}};
  try {
    contender.ring = std::make_unique<Ring>(options, logger, path);
    contender.result.path = contender.ring->path();
  } catch (const Error& error) {
    if (path != IoPath::io_uring) throw;
    contender.result.unavailable = error.what();
  }
  return contender;
}

void run_round(Bench& bench, Contender& contender) {
  if (!contender.result.unavailable.empty()) return;
  contender.rounds.push_back(measure_once(bench, [&](OpKind kind) {
    if (contender.ring == nullptr) {
      transfer_plainly(bench, kind);
    } else {
      transfer_through(*contender.ring, bench, kind);
    }
  }));
}

}  // namespace

Throughput measure_throughput(const ThroughputPlan& plan) {
  if (plan.bytes < 1 || plan.rounds < 1) {
    throw ConfigError({.what = fmt::format("{} bytes in {} rounds", plan.bytes, plan.rounds),
                       .where = "the I/O measurement",
                       .fix = "use at least one byte and one round"});
  }
  Bench bench = prepare(plan);
  // The first write of a new file also pays for its extents; nobody's figure should.
  transfer_plainly(bench, OpKind::write);
  bench.file.sync();

  NullLogger logger;
  std::vector<Contender> contenders(1);  // the first is the plain one
  for (const IoPath path : plan.paths) {
    contenders.push_back(open_contender(plan.options, path, logger));
  }
  // Another one begins each round: disks in the cloud lend speed to whoever comes after a pause.
  for (int round = 0; round < plan.rounds; ++round) {
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      run_round(bench, contenders[(i + static_cast<std::size_t>(round)) % contenders.size()]);
    }
  }
  Throughput measured{.direct = bench.file.direct(), .plain = median(contenders[0].rounds)};
  for (std::size_t i = 1; i < contenders.size(); ++i) {
    if (!contenders[i].rounds.empty()) contenders[i].result.rates = median(contenders[i].rounds);
    measured.paths.push_back(std::move(contenders[i].result));
  }
  return measured;
}

}  // namespace capstan::io

#include "capstan/store/swap_files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <system_error>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "capstan/io/aligned_buffer.h"
#include "capstan/io/failure.h"
#include "capstan/io/space.h"

namespace capstan::store {
namespace {

constexpr std::int64_t kHeaderBytes = io::kDirectIoAlignBytes;

std::string new_id() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

// Whether the name still leads to this open file: someone may have removed it in between.
bool still_named(const io::File& file) {
  struct stat named{};
  struct stat open{};
  return ::stat(file.path().c_str(), &named) == 0 && ::fstat(file.descriptor()->fd(), &open) == 0 &&
         named.st_ino == open.st_ino && named.st_dev == open.st_dev;
}

// False: another process has it in its hands.
bool lock(const io::File& file) {
  if (::flock(file.descriptor()->fd(), LOCK_EX | LOCK_NB) == 0) return true;
  if (errno == EWOULDBLOCK || errno == EINTR) return false;
  throw io::io_failure({.verb = "lock", .file = file.path()}, errno);
}

void write_header(const io::File& file, const std::string& text) {
  std::string page = text;
  page.resize(static_cast<std::size_t>(kHeaderBytes), '\n');
  std::int64_t offset = 0;
  while (offset < kHeaderBytes) {
    const auto rest = static_cast<std::size_t>(kHeaderBytes - offset);
    const ssize_t written = ::pwrite(file.descriptor()->fd(), page.data() + offset, rest, offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      throw io::io_failure(
          {.verb = "write", .file = file.path(), .offset = offset, .bytes = kHeaderBytes - offset},
          written < 0 ? errno : ENOSPC);
    }
    offset += written;
  }
}

io::File make_file(const std::filesystem::path& folder, const SwapOptions& options) {
  const std::string id = new_id();
  for (;;) {
    io::File file = io::File::open(folder / fmt::format("{}{}.bin", kSwapPrefix, id),
                                   {.access = io::Access::create, .direct = options.direct});
    // Between the two calls another process may take it for one that was left.
    if (!lock(file) || !still_named(file)) continue;
    write_header(file,
                 fmt::format("capstan swap file 1\nengine {}\nprocess {}\n{}\nlayout {:016x}\n", id,
                             ::getpid(), options.label, options.layout_hash));
    return file;
  }
}

}  // namespace

SwapFiles::SwapFiles(const SwapOptions& options) {
  const auto folders = static_cast<std::int64_t>(options.folders.size());
  for (const std::filesystem::path& folder : options.folders) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) throw io::io_failure({.verb = "create", .file = folder}, error.value());
    remove_left_swap_files(folder);
    io::require_free_bytes(folder, (options.needed_bytes + folders - 1) / folders + kHeaderBytes,
                           "the " + options.label);
  }
  for (const std::filesystem::path& folder : options.folders) {
    swaps_.push_back({make_file(folder, options), kHeaderBytes});
  }
}

SwapFiles::~SwapFiles() {
  for (const auto& [address, mapping] : mappings_) {
    ::munmap(const_cast<std::byte*>(address), static_cast<std::size_t>(mapping.bytes));
  }
  for (const Swap& swap : swaps_) {
    std::error_code ignored;
    std::filesystem::remove(swap.file.path(), ignored);
  }
}

c10::DataPtr SwapFiles::take(std::int64_t bytes) {
  const std::lock_guard guard(mutex_);
  const auto least = std::min_element(swaps_.begin(), swaps_.end(),
                                      [](const Swap& a, const Swap& b) { return a.end < b.end; });
  const std::int64_t offset = least->end;
  const std::int64_t rounded = io::round_up_to_align(std::max<std::int64_t>(bytes, 1));
  least->file.reserve(offset + rounded);
  void* const memory = ::mmap(nullptr, static_cast<std::size_t>(rounded), PROT_READ | PROT_WRITE,
                              MAP_SHARED, least->file.descriptor()->fd(), offset);
  if (memory == MAP_FAILED) {
    throw io::io_failure(
        {.verb = "map", .file = least->file.path(), .offset = offset, .bytes = rounded}, errno);
  }
  least->end += rounded;
  mappings_.emplace(static_cast<const std::byte*>(memory),
                    Mapping{static_cast<std::size_t>(least - swaps_.begin()), offset, rounded});
  return {memory, c10::Device(c10::kCPU)};
}

SwapFiles::Place SwapFiles::place_of(const void* address) const {
  const std::lock_guard guard(mutex_);
  const auto* const byte = static_cast<const std::byte*>(address);
  const auto& [start, mapping] = *std::prev(mappings_.upper_bound(byte));
  return {&swaps_[mapping.swap].file, mapping.offset + (byte - start)};
}

void SwapFiles::write_back(Home::Which which) {
  const std::lock_guard guard(mutex_);
  for (auto& [address, mapping] : mappings_) {
    if (which == Home::Which::new_memory && mapping.written_back) continue;
    auto* const memory = const_cast<std::byte*>(address);
    const auto bytes = static_cast<std::size_t>(mapping.bytes);
    if (::msync(memory, bytes, MS_SYNC) != 0) {
      throw io::io_failure({.verb = "write",
                            .file = swaps_[mapping.swap].file.path(),
                            .offset = mapping.offset,
                            .bytes = mapping.bytes},
                           errno);
    }
    ::madvise(memory, bytes, MADV_DONTNEED);
    mapping.written_back = true;
  }
  for (Swap& swap : swaps_) swap.file.drop_cache();
}

std::int64_t SwapFiles::used_bytes() const {
  const std::lock_guard guard(mutex_);
  std::int64_t total = 0;
  for (const Swap& swap : swaps_) total += swap.end;
  return total;
}

}  // namespace capstan::store

#include "capstan/device/host_buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <utility>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/device/pinning.h"

namespace capstan::device {
namespace {

constexpr std::int64_t kHugePageBytes = 2 << 20;

}  // namespace

HostBuffer::HostBuffer(std::int64_t bytes, HostMemory kind) : bytes_(bytes) {
  if (bytes == 0) {
    return;
  }
  void* memory = nullptr;
  const bool large = bytes >= kHugePageBytes;
  const std::int64_t align = large ? kHugePageBytes : kHostAlignBytes;
  if (bytes < 0 || posix_memalign(&memory, align, bytes) != 0) {
    throw ConfigError({.what = "cannot allocate " + format_bytes(bytes) + " of host memory",
                       .where = "host buffer",
                       .fix = "free some host memory, or offload less to it"});
  }
  // Kernels that stream through gigabytes spend a good part of their time on small pages.
  if (large) madvise(memory, bytes, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(memory);
  if (kind == HostMemory::pageable) {
    return;
  }
  const std::string why = pin_memory(memory, bytes);
  if (!why.empty()) {
    std::free(memory);
    throw ConfigError({.what = format_bytes(bytes) + " of host memory cannot be pinned: " + why,
                       .where = "host buffer",
                       .fix =
                           "use pageable memory, or check the limit on locked memory (ulimit -l) "
                           "and the driver"});
  }
  pinned_ = true;
}

HostBuffer::HostBuffer(HostBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      pinned_(std::exchange(other.pinned_, false)) {}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  if (this != &other) {
    HostBuffer old(std::move(*this));
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    pinned_ = std::exchange(other.pinned_, false);
  }
  return *this;
}

HostBuffer::~HostBuffer() {
  if (pinned_) {
    unpin_memory(data_);
  }
  std::free(data_);
}

}  // namespace capstan::device

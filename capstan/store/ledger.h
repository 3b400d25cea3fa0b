// What holds how much memory, counted as it is taken and given back. The same kinds appear in the
// memory arithmetic (shard/memory.h), in tests, and in an out-of-memory report.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

namespace capstan::store {

enum class MemoryKind {
  parameters,  // shards, and whole units while they are gathered
  gradients,   // flat gradient buffers and gradient shards
  optimizer,   // master shards and moments
};
inline constexpr int kMemoryKinds = 3;

std::string_view to_string(MemoryKind kind);

// Bytes by kind, at one moment or as peaks.
struct MemoryUse {
  std::array<std::int64_t, kMemoryKinds> bytes{};

  std::int64_t operator[](MemoryKind kind) const { return bytes[static_cast<int>(kind)]; }
  std::int64_t& operator[](MemoryKind kind) { return bytes[static_cast<int>(kind)]; }
  std::int64_t total() const;
  MemoryUse& operator+=(const MemoryUse& other);
  bool operator==(const MemoryUse&) const = default;
};

// "parameters 1.5 GiB, gradients 0 B, optimizer 3 GiB"
std::string to_text(const MemoryUse& use);

// Threads: any.
class Ledger {
 public:
  void add(MemoryKind kind, std::int64_t bytes);  // negative: given back

  MemoryUse now() const;
  MemoryUse peak() const;  // of each kind by itself since the last reset
  std::int64_t peak_total() const;
  void reset_peak();

 private:
  mutable std::mutex mutex_;  // guards all below
  MemoryUse now_;
  MemoryUse peak_;
  std::int64_t peak_total_ = 0;
};

}  // namespace capstan::store

// What one collective is: its kind and the facts that must be equal on every rank.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include <c10/core/ScalarType.h>

namespace capstan::comm {

enum class OpKind : std::uint8_t {
  all_gather,
  reduce_scatter,
  all_reduce,
  broadcast,
  all_to_all,
  send,
  recv,
  barrier,
};
inline constexpr int kOpKinds = 8;

std::string_view to_string(OpKind kind);

// Short names as in the configuration: fp32, bf16, int64, …
std::string_view dtype_name(at::ScalarType dtype);

// A caller's name for an operation (a unit, say), equal on every rank; cut to what fits: recording
// never allocates.
class OpLabel {
 public:
  OpLabel() = default;
  explicit OpLabel(std::string_view text);
  std::string_view text() const { return {text_.data(), length_}; }
  bool operator==(const OpLabel& other) const { return text() == other.text(); }

 private:
  std::array<char, 39> text_{};
  std::uint8_t length_ = 0;
};

struct OpFacts {
  OpKind kind = OpKind::barrier;
  at::ScalarType dtype = at::ScalarType::Byte;
  std::int64_t elems = 0;  // of the whole buffer: what all ranks hold together after a gather
  int peer = -1;           // broadcast: the root; send, recv: the other rank
  OpLabel label;
};

// "all_gather of 4096 bf16 (unit 3)"
std::string to_text(const OpFacts& facts);
std::int64_t payload_bytes(const OpFacts& facts);

// Whether two ranks that issue these at the same place of their order mean the same collective.
bool same_collective(const OpFacts& a, const OpFacts& b);

// Mixes an operation into `seed`; differs for two that are not the same collective, but for one
// chance in 2^64.
std::uint64_t mix(std::uint64_t seed, const OpFacts& facts);
std::uint64_t mix(std::uint64_t seed, std::string_view bytes);

struct RankOp {
  int rank = 0;
  OpFacts facts;
};
// "collective #3 does not match: rank 0 issued ...; rank 1 issued ..."
std::string mismatch_text(std::int64_t number, const RankOp& a, const RankOp& b);

struct OpCounter {
  std::int64_t calls = 0;
  std::int64_t elems = 0;  // whole buffers, also in a group of one
  std::int64_t bytes = 0;  // the same in the dtype that travels
  bool operator==(const OpCounter&) const = default;
};

// Indexed by OpKind.
struct Counters {
  std::array<OpCounter, kOpKinds> ops;

  const OpCounter& operator[](OpKind kind) const { return ops[static_cast<int>(kind)]; }
  OpCounter& operator[](OpKind kind) { return ops[static_cast<int>(kind)]; }
};

}  // namespace capstan::comm

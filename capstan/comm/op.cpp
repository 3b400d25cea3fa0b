#include "capstan/comm/op.h"

#include <algorithm>

#include <fmt/format.h>

namespace capstan::comm {

std::string_view to_string(OpKind kind) {
  constexpr std::array<std::string_view, kOpKinds> kNames = {
      "all_gather", "reduce_scatter", "all_reduce", "broadcast",
      "all_to_all", "send",           "recv",       "barrier"};
  return kNames[static_cast<int>(kind)];
}

std::string_view dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::ScalarType::Float:
      return "fp32";
    case at::ScalarType::Half:
      return "fp16";
    case at::ScalarType::BFloat16:
      return "bf16";
    case at::ScalarType::Double:
      return "fp64";
    case at::ScalarType::Int:
      return "int32";
    case at::ScalarType::Long:
      return "int64";
    case at::ScalarType::Byte:
      return "uint8";
    default:
      return c10::toString(dtype);
  }
}

OpLabel::OpLabel(std::string_view text) {
  length_ = static_cast<std::uint8_t>(std::min(text.size(), text_.size()));
  std::copy_n(text.begin(), length_, text_.begin());
}

std::string to_text(const OpFacts& facts) {
  std::string text{to_string(facts.kind)};
  if (facts.kind != OpKind::barrier) {
    text += fmt::format(" of {} {}", facts.elems, dtype_name(facts.dtype));
  }
  switch (facts.kind) {
    case OpKind::broadcast:
    case OpKind::recv:
      text += fmt::format(" from rank {}", facts.peer);
      break;
    case OpKind::send:
      text += fmt::format(" to rank {}", facts.peer);
      break;
    default:
      break;
  }
  if (!facts.label.text().empty()) {
    text += fmt::format(" ({})", facts.label.text());
  }
  return text;
}

std::int64_t payload_bytes(const OpFacts& facts) {
  return facts.elems * static_cast<std::int64_t>(c10::elementSize(facts.dtype));
}

bool same_collective(const OpFacts& a, const OpFacts& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.elems == b.elems && a.peer == b.peer &&
         a.label == b.label;
}

// FNV-1a: enough to tell operations apart, and a few nanoseconds for each.
std::uint64_t mix(std::uint64_t seed, std::string_view bytes) {
  for (const char byte : bytes) seed = (seed ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return seed;
}

std::uint64_t mix(std::uint64_t seed, const OpFacts& facts) {
  const std::array<std::int64_t, 4> numbers = {static_cast<std::int64_t>(facts.kind),
                                               static_cast<std::int64_t>(facts.dtype), facts.elems,
                                               facts.peer};
  seed = mix(seed, {reinterpret_cast<const char*>(numbers.data()), sizeof(numbers)});
  return mix(seed, facts.label.text());
}

std::string mismatch_text(std::int64_t number, const RankOp& a, const RankOp& b) {
  if (a.rank > b.rank) return mismatch_text(number, b, a);
  const bool gathers = a.facts.kind == OpKind::all_gather && b.facts.kind == OpKind::all_gather;
  const std::string units =
      gathers && a.facts.label != b.facts.label
          ? fmt::format("ranks {} and {} gather different units ({}, {}): ", a.rank, b.rank,
                        a.facts.label.text(), b.facts.label.text())
          : "";
  return fmt::format("{}collective #{} does not match: rank {} issued {}; rank {} issued {}", units,
                     number, a.rank, to_text(a.facts), b.rank, to_text(b.facts));
}

}  // namespace capstan::comm

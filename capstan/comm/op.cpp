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

bool same_collective(const OpFacts& a, const OpFacts& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.elems == b.elems && a.peer == b.peer;
}

}  // namespace capstan::comm

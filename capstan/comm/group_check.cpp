#include "capstan/comm/group_check.h"

#include <fmt/format.h>

#include "capstan/comm/group_state.h"

namespace capstan::comm {
namespace {

bool is_known_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::ScalarType::Float:
    case at::ScalarType::Half:
    case at::ScalarType::BFloat16:
    case at::ScalarType::Double:
    case at::ScalarType::Int:
    case at::ScalarType::Long:
    case at::ScalarType::Byte:
      return true;
    default:
      return false;
  }
}

}  // namespace

void check_tensor(const GroupState& group, const OpFacts& facts, const at::Tensor& tensor) {
  std::string why;
  if (!tensor.defined()) {
    why = "the tensor is undefined";
  } else if (tensor.dim() != 1 || !tensor.is_contiguous()) {
    why = fmt::format("the tensor has {} dims and is {}contiguous", tensor.dim(),
                      tensor.is_contiguous() ? "" : "not ");
  } else if (!is_known_dtype(tensor.scalar_type())) {
    why = fmt::format("the tensor's dtype is {}", dtype_name(tensor.scalar_type()));
  }
  if (!why.empty()) {
    refuse(group, facts,
           why +
               "; a collective takes 1-D contiguous tensors of fp32, fp16, bf16, "
               "fp64, int32, int64 or uint8");
  }
}

void refuse(const GroupState& group, const OpFacts& facts, const std::string& why) {
  throw ConfigError({.what = why,
                     .where = fmt::format("group '{}', rank {} of {}: {}", group.options.name,
                                          group.rank, group.size, to_text(facts)),
                     .fix = "pass matching flat tensors; nothing was sent"});
}

OpFacts describe(OpKind kind, const at::Tensor& whole, std::string_view label, int peer) {
  OpFacts facts{.kind = kind, .peer = peer, .label = OpLabel(label)};
  if (whole.defined()) {
    facts.dtype = whole.scalar_type();
    facts.elems = whole.numel();
  }
  return facts;
}

void check_peer(const GroupState& group, const OpFacts& facts) {
  if (facts.peer < 0 || facts.peer >= group.size || facts.peer == group.rank) {
    refuse(group, facts,
           fmt::format("the peer is rank {}, but it must be another rank of 0 to {}", facts.peer,
                       group.size - 1));
  }
}

}  // namespace capstan::comm

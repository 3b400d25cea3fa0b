// The checks at the edge of Group: wrong tensors are refused before anything is sent. Private to
// comm.
#pragma once

#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "capstan/comm/op.h"

namespace capstan::comm {

struct GroupState;

OpFacts describe(OpKind kind, const at::Tensor& whole, std::string_view label, int peer = -1);

// Each throws ConfigError.
[[noreturn]] void refuse(const GroupState& group, const OpFacts& facts, const std::string& why);
void check_tensor(const GroupState& group, const OpFacts& facts, const at::Tensor& tensor);
void check_peer(const GroupState& group, const OpFacts& facts);  // another rank of the group

}  // namespace capstan::comm

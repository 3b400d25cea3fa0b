// What sharding needs to know about a model, whatever kind of modules it is made of.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/shard/plan.h"

namespace capstan::nn {
class UnitBase;
}

namespace capstan::shard {

class LooseShard;

struct ModelView {
  // Parameters by name: each tensor once, under its first name.
  std::vector<std::string> names;
  std::vector<at::Tensor> params;
  std::vector<std::vector<std::int64_t>> sizes;  // of the whole parameters
  std::vector<std::optional<DType>> travel;      // of gradients, as in ParamSpec; empty: all unset
  std::vector<std::optional<layout::TensorSlice>> slices;  // as in ParamSpec; empty: all unset
  // Of a pipeline: what stages share, the same list on all of them, and which of these each
  // parameter is (empty: none).
  std::vector<Tie> ties;
  std::vector<std::optional<int>> tie_of;
  std::vector<BoundarySpec> boundaries;
  std::vector<at::Tensor> buffers;
  std::vector<nn::UnitBase*> units;  // C++ models: of each boundary; else empty
  // Of each parameter that is sharded although no engine has it, else null; empty: none is.
  std::vector<std::shared_ptr<LooseShard>> loose;
  std::optional<c10::Device> device;  // of the engine; unset: where the parameters are

  c10::Device home() const {
    if (device.has_value()) return *device;
    return params.empty() ? c10::Device(c10::kCPU) : params.front().device();
  }
  bool is_loose(std::size_t param) const { return !loose.empty() && loose[param] != nullptr; }
  // Whether all its elements are the same one in memory, as of weights that are loaded later.
  bool is_constant(std::size_t param) const {
    const at::Tensor& values = params[param];
    const auto moves = [](std::int64_t stride) { return stride != 0; };
    return values.numel() > 1 && std::ranges::none_of(values.strides(), moves);
  }
  // A number that tells which of them are.
  std::int64_t constants() const {
    std::uint64_t number = 0;
    for (std::size_t i = 0; i < params.size(); ++i) number = number * 31 + (is_constant(i) ? 1 : 0);
    return static_cast<std::int64_t>(number);
  }
};

}  // namespace capstan::shard

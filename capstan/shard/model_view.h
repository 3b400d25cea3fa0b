// What sharding needs to know about a model, whatever kind of modules it is made of.
#pragma once

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

class EarlyShard;

struct ModelView {
  // Parameters by name: each tensor once, under its first name.
  std::vector<std::string> names;
  std::vector<at::Tensor> params;
  std::vector<std::vector<std::int64_t>> sizes;  // of the whole parameters
  std::vector<std::optional<DType>> travel;      // of gradients, as in ParamSpec; empty: all unset
  std::vector<BoundarySpec> boundaries;
  std::vector<at::Tensor> buffers;
  std::vector<nn::UnitBase*> units;  // C++ models: of each boundary; else empty
  // Of each parameter that is sharded already, else null; empty: none is.
  std::vector<std::shared_ptr<EarlyShard>> early;
  std::optional<c10::Device> device;  // of the engine; unset: where the parameters are

  c10::Device home() const {
    if (device.has_value()) return *device;
    return params.empty() ? c10::Device(c10::kCPU) : params.front().device();
  }
  bool is_early(std::size_t param) const { return !early.empty() && early[param] != nullptr; }
};

}  // namespace capstan::shard

// What sharding needs to know about a model, whatever kind of modules it is made of.
#pragma once

#include <memory>
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
  std::vector<BoundarySpec> boundaries;
  std::vector<at::Tensor> buffers;
  std::vector<nn::UnitBase*> units;  // C++ models: of each boundary; else empty
  // Of each parameter that is sharded already, else null; empty: none is.
  std::vector<std::shared_ptr<EarlyShard>> early;
};

}  // namespace capstan::shard

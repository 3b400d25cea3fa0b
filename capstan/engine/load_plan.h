// Which tensor of a checkpoint goes where in an engine, decided before anything is touched.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/checkpoint/reader.h"
#include "capstan/engine/common.h"
#include "capstan/engine/stored_tensors.h"

namespace capstan::engine {

// A tensor of the checkpoint or the model without its like in the other.
struct LoadMisfit {
  enum class Kind { missing, shape, type, extra, state };
  Kind kind;
  std::string text;  // one sentence
  int param = -1;    // whose state it is
};

struct LoadPlan {
  std::vector<const checkpoint::IndexTensor*> weights;  // by parameter; null: stays as it is
  std::vector<const checkpoint::IndexTensor*> masters;  // likewise; null: from the weights
  std::vector<std::pair<const checkpoint::IndexTensor*, at::Tensor>> buffers;
  std::vector<LoadMisfit> misfits;     // of the weights
  std::vector<LoadMisfit> unloadable;  // of the optimizer
  bool has_masters = true;             // false: their files are not complete, the weights' are
  bool optimizer = false;
};

// The stored tensor of a parameter, under its own name or an alias; null: there is none.
const checkpoint::IndexTensor* find_stored(const checkpoint::Reader& reader,
                                           const std::string& column, const StoredNames& names,
                                           int param);

// What files call the tensors: ours, and all of a pipeline's stages (empty without one).
struct NamesToLoad {
  const StoredNames& ours;
  const std::set<std::string>& of_stages;
};

// Throws one ConfigError that lists all that does not fit and may not be skipped.
LoadPlan load_plan(const Common& common, const checkpoint::Reader& reader, const LoadOptions& how,
                   const NamesToLoad& names);

}  // namespace capstan::engine

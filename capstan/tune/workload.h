// What is to be trained, with which options, on how many ranks: the question that estimates, plans
// and trials are about. A plain value.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "capstan/engine/options.h"
#include "capstan/models/blueprint.h"
#include "capstan/pipeline/schedules.h"

namespace capstan::tune {

struct Workload {
  std::shared_ptr<const models::Blueprint> model;
  std::int64_t tokens = 0;  // of each sequence
  engine::Options options;
  int ranks = 1;
  pipeline::Kind schedule = pipeline::Kind::one_f_one_b;  // of options.mesh.pipe > 1
};

// The blocks of each stage: the slowest pass through a stage is as fast as it can be. Throws
// ConfigError where the model cannot be cut into so many.
std::vector<models::BlockRange> cut_model(const models::Blueprint& model, int stages,
                                          std::int64_t tokens);

}  // namespace capstan::tune

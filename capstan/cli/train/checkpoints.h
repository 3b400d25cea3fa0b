// Checkpoints of `capstan train`: the model as Hugging Face's files name it, and what the loop must
// remember.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "capstan/comm/group.h"
#include "capstan/data/sampler.h"
#include "capstan/engine/engine.h"
#include "capstan/models/model.h"

namespace capstan::cli::train {

// How files name what the model holds: rows that exist inside only are left out.
engine::ModelExtras file_names(models::Model& model);

struct SaveWhere {
  std::string folder;
  int keep_last = 0;
  std::string tokenizer;         // its file's text, goes with the weights; empty: bytes
  std::int64_t end_of_text = 0;  // its token
  std::int64_t max_steps = 0;    // that the run is planned for
};

// What a resumed run is told of the one before it.
struct Resumed {
  std::string tag;
  std::int64_t max_steps = 0;  // that it was planned for; 0: not known
  double lr = 0;               // of the step that would have come next
};

// Collective, all three.
// Whether resume() has something to load, equal on all ranks. Throws IoError where there are
// checkpoints and none is complete, and ConfigError where the newest is of another model.
bool can_resume(comm::Group& group, c10::Device device, const models::Blueprint& model,
                const std::string& folder);
engine::Saved save(Engine& engine, const models::Blueprint& model, const data::Sampler& sampler,
                   const SaveWhere& where);
// Nothing where there is no checkpoint, which is an IoError where the model's weights were to come
// from it.
std::optional<Resumed> resume(Engine& engine, const models::Blueprint& model,
                              data::Sampler& sampler, const std::string& folder);

}  // namespace capstan::cli::train

// Trained parameters of a checkpoint of ours by the optimizer's groups, as DeepSpeed's files have
// them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "capstan/checkpoint/deepspeed/exported_run.h"
#include "capstan/checkpoint/reader.h"

namespace capstan::checkpoint {

struct ExportedGroup {
  std::vector<const IndexTensor*> params, masters;
  std::map<std::string, double> hyper;
};

// In the optimizer's order; where a checkpoint knows no groups, one in the model's order. Throws
// ConfigError for a parameter without an fp32 master or optimizer state.
std::vector<ExportedGroup> exported_groups(Reader& reader);

// torch's state_dict(). `states`: what the optimizer keeps for each of a group's parameters; torch
// counts them over all groups.
PyRef torch_state(const std::vector<ExportedGroup>& groups,
                  const std::vector<std::vector<Entries>>& states, bool decoupled_weight_decay);

}  // namespace capstan::checkpoint

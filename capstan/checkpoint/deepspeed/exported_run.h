// What a checkpoint of ours says about its run beside the tensors, as DeepSpeed's files say it.
#pragma once

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "capstan/checkpoint/deepspeed/python_value.h"
#include "capstan/checkpoint/training_state.h"
#include "capstan/json/reader.h"

namespace capstan::checkpoint {

using Entries = std::vector<std::pair<PyRef, PyRef>>;

// A tensor of the client's by its name.
using ClientTensor = std::function<PyRef(const std::string& name)>;

// Of texts in a state: they are as large as they were saved.
inline constexpr json::ReadLimits kTextLimits{.bytes = std::numeric_limits<std::size_t>::max(),
                                              .depth = 500};

// What the Python package marks as a tuple, a tensor and so on is that again; arrays are tensors.
PyRef from_json(const json::Value& value, const ClientTensor& tensor);

// Whether the run looked for its loss scale by itself.
bool scales_dynamically(const TrainingState& state);
// The object of stages 1 to 3; a run that goes on takes it with all its rules.
PyRef loss_scaler(const TrainingState& state);
// What stage 0 keeps of it among the optimizer's entries.
Entries loss_scale_entries(const TrainingState& state);

// The client's own entries, by their keys. `names`: of its tensors.
Entries client_entries(const std::string& client_state, const std::vector<std::string>& names,
                       const ClientTensor& tensor);

}  // namespace capstan::checkpoint

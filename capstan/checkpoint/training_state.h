// What a checkpoint says about a run apart from its tensors, as plain values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace capstan::checkpoint {

// Parameters that the optimizer updates with the same hyper-parameters.
struct ParamGroup {
  std::vector<std::string> params;      // in the optimizer's order
  std::map<std::string, double> hyper;  // e.g. lr, beta1, beta2, eps, weight_decay
  bool operator==(const ParamGroup&) const = default;
};

struct TrainingState {
  int stage = 0;
  int world_size = 1;
  std::map<std::string, std::string> precision;     // kind of value -> dtype, e.g. params -> bf16
  std::map<std::string, std::int64_t> progress;     // steps, micro_steps, skipped, samples, ...
  std::map<std::string, double> loss_scale;         // empty: not saved
  std::string optimizer;                            // e.g. adamw; empty: no optimizer state
  std::vector<std::string> optimizer_states;        // e.g. exp_avg, exp_avg_sq
  std::map<std::string, double> optimizer_scalars;  // e.g. step
  std::vector<ParamGroup> param_groups;             // empty: not known, all are in one
  std::string lr_scheduler = "null";                // JSON text
  std::string data = "null";                        // JSON text: where in the data the run stands
  std::string client_state = "{}";                  // JSON text, an object
  std::map<std::string, std::string> aliases;       // tied parameter -> the name it is stored under
  std::vector<std::string> frozen;
  std::vector<std::string> buffers;  // tensors among the weights that are no parameters
  bool operator==(const TrainingState&) const = default;
};

}  // namespace capstan::checkpoint

// The trained parameters of a DeepSpeed checkpoint, stage by stage: where their fp32 masters and
// the optimizer's states lie.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "capstan/checkpoint/deepspeed/files.h"
#include "capstan/checkpoint/training_state.h"

namespace capstan::checkpoint {

// By the state's name: "" is the master, the others are the optimizer's (exp_avg, ...). fp32.
using StateSpans = std::map<std::string, std::vector<FileSpan>>;

struct TrainedParams {
  std::map<std::string, StateSpans> by_name;  // of the parameter
  std::map<std::string, double> scalars;      // step; of the first group lr, betas, eps, ...
  std::vector<ParamGroup> groups;
};

TrainedParams trained_flat(const DeepSpeedFiles& files);    // stages 1 and 2
TrainedParams trained_sliced(const DeepSpeedFiles& files);  // stage 3
TrainedParams trained_whole(const DeepSpeedFiles& files);   // stage 0
TrainedParams trained_universal(const DeepSpeedFiles& files);

}  // namespace capstan::checkpoint

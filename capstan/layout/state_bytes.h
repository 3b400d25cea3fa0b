// Memory for parameters, gradients and Adam's states in mixed precision by the rules of thumb that
// DeepSpeed's tables print: 2 bytes for parameters and for gradients, 4 for masters and for each of
// two moments, and fp32 gradients. An engine's own forecast, exact from its layout, is in shard/.
#pragma once

#include <cstdint>

namespace capstan::layout {

struct StateQuestion {
  double params = 0;         // of the whole model
  double largest_layer = 0;  // parameters of the largest layer, for stage 3
  int gpus_per_node = 1;
  int nodes = 1;
  bool offload_optimizer = true;
  bool offload_params = true;  // stage 3, beside the optimizer
  bool sharded_init = true;    // stage 3: the model is never whole in host memory
  double host_factor = 1.5;    // host memory for buffers beside the states
};

struct StateBytes {
  std::int64_t host_per_node = 0;
  std::int64_t device = 0;         // per GPU
  std::int64_t largest_layer = 0;  // of `device`, at stage 3
  bool operator==(const StateBytes&) const = default;
};

StateBytes stage2_state_bytes(const StateQuestion& question);
StateBytes stage3_state_bytes(const StateQuestion& question);

}  // namespace capstan::layout

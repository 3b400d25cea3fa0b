#include "capstan/config/option_names.h"

namespace capstan::config {

OptionNames option_names() {
  return {{
      {"batch.accumulation_steps", "gradient_accumulation_steps"},
      {"batch.micro_samples", "train_micro_batch_size_per_gpu"},
      {"comm.backend", "capstan.backend"},
      {"host", "cpu"},
      {"mesh.pipe", "pipeline.stages"},
      {"mesh.sequence", "sequence_parallel_size"},
      {"mesh.tensor", "tensor_parallel.autotp_size"},
      {"precision.optimizer_state", "capstan.optimizer_state_dtype"},
      {"precision.params", "bf16.enabled, or fp16.enabled on GPUs before Ampere"},
      {"shard.leaf_modules", "zero_optimization.leaf_module"},
      {"shard.leaf_modules.names", "zero_optimization.leaf_module.names"},
      {"shard.overlap_comm", "zero_optimization.overlap_comm"},
      {"shard.persistence_threshold_elems", "stage3_param_persistence_threshold"},
      {"shard.max_reuse_bytes", "stage3_max_reuse_distance"},
      {"shard.prefetch_bytes", "stage3_prefetch_bucket_size"},
      {"shard.stage", "zero_optimization.stage"},
      {"shard.unit_names", "capstan.units"},
      {"shard.unused_parameters", "zero_optimization.ignore_unused_parameters"},
      {"store", "zero_optimization.offload_optimizer, offload_param"},
      {"store.optimizer.buffer_count", "offload_optimizer.buffer_count"},
      {"store.optimizer.early_updates", "capstan.early_updates"},
      {"store.optimizer.late_updates", "capstan.late_updates"},
      {"store.optimizer.placement", "zero_optimization.offload_optimizer.device"},
      {"store.optimizer.ratio", "offload_optimizer.ratio"},
      {"store.params.placement", "zero_optimization.offload_param.device"},
  }};
}

}  // namespace capstan::config

"""Keys of the configuration and their defaults, under DeepSpeed's names."""

from capstan import _C

_CORE = _C.config_defaults("")

ROUTE_TRAIN, ROUTE_EVAL, ROUTE_PREDICT, ROUTE_ENCODE = "train", "eval", "predict", "encode"
TRAIN_BATCH_SIZE, TRAIN_MICRO_BATCH_SIZE_PER_GPU = "train_batch_size", "train_micro_batch_size_per_gpu"
GRADIENT_ACCUMULATION_STEPS = "gradient_accumulation_steps"
GRADIENT_CLIPPING, GRADIENT_CLIPPING_DEFAULT = "gradient_clipping", _CORE["gradient_clipping"]
LOG_LEVEL, LOG_LEVEL_DEFAULT = "log_level", None
STEPS_PER_PRINT, STEPS_PER_PRINT_DEFAULT = "steps_per_print", _CORE["steps_per_print"]
OPTIMIZER, SCHEDULER, TYPE, PARAMS, MAX_GRAD_NORM = "optimizer", "scheduler", "type", "params", "max_grad_norm"
OPTIMIZER_TYPE_DEFAULT = SCHEDULER_TYPE_DEFAULT = None
FP16, BFLOAT16, BFLOAT16_OLD, FP16_ENABLED = "fp16", "bf16", "bfloat16", "enabled"
ZERO_OPTIMIZATION = "zero_optimization"
ZERO_ALLOW_UNTESTED_OPTIMIZER, ZERO_FORCE_DS_CPU_OPTIMIZER = "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer"
GRADIENT_ALLREDUCE_OP, GRADIENT_ALLREDUCE_OP_DEFAULT = "gradient_allreduce_op", _CORE["gradient_allreduce_op"]
TORCH_DISTRIBUTED_DEFAULT_PORT = 29500
DATA_PARALLEL_GROUP, GLOBAL_RANK = "data_parallel_group", "global_rank"

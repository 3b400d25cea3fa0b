"""Keys inside checkpoint files of DeepSpeed's layout."""

UNIVERSAL_CHECKPOINT_INFO = "universal_checkpoint_info"
UNIVERSAL_CHECKPOINT_VERSION_KEY, UNIVERSAL_CHECKPOINT_VERSION_VALUE = "universal_checkpoint_version", 0.4
AUTOEP_LAYERS_KEY = "autoep_layers"
CHECKPOINT_PARALLEL_DIMS = "checkpoint_parallel_dimensions"
CHECKPOINT_PP_DEGREE, CHECKPOINT_TP_DEGREE = "pp_degree", "tp_degree"
OPTIMIZER_STATE_DICT, FP32_FLAT_GROUPS, ZERO_STAGE = "optimizer_state_dict", "fp32_flat_groups", "zero_stage"
PARAM_SHAPES = "param_shapes"

"""The section zero_optimization as a pydantic model. What a key does is decided by capstan's own schema."""

from enum import Enum
from typing import Any, Optional

from pydantic import Field, model_validator

from capstan import _C
from deepspeed.runtime.config_utils import DeepSpeedConfigModel
from deepspeed.runtime.zero.leaf_module_config import DeepSpeedZeroLeafModuleConfig
from deepspeed.runtime.zero.offload_config import (DeepSpeedZeroOffloadOptimizerConfig,
                                                   DeepSpeedZeroOffloadParamConfig, OffloadDeviceEnum)
from deepspeed.utils.logging import logger


class ZeroStageEnum(int, Enum):
    disabled = 0
    optimizer_states = 1
    gradients = 2
    weights = 3
    max_stage = 3


def _offload(kind):
    return lambda on: kind(device=OffloadDeviceEnum.cpu) if on else None


_CORE = _C.config_defaults("zero_optimization")


def _aliased(key, **bounds):
    """A field whose name is not the key's."""
    return Field(_CORE[key], alias=key, **bounds)


_OLD_KEYS = ("cpu_offload", "cpu_offload_param", "cpu_offload_use_pin_memory")


class DeepSpeedZeroConfig(DeepSpeedConfigModel):
    stage: ZeroStageEnum = _CORE["stage"]
    contiguous_gradients: bool = _CORE["contiguous_gradients"]
    reduce_scatter: bool = _CORE["reduce_scatter"]
    reduce_bucket_size: int = Field(_CORE["reduce_bucket_size"], ge=0)
    use_multi_rank_bucket_allreduce: bool = _CORE["use_multi_rank_bucket_allreduce"]
    allgather_partitions: bool = _CORE["allgather_partitions"]
    allgather_bucket_size: int = Field(_CORE["allgather_bucket_size"], ge=0)
    overlap_comm: Optional[bool] = None
    load_from_fp32_weights: bool = _CORE["load_from_fp32_weights"]
    elastic_checkpoint: bool = _CORE["elastic_checkpoint"]
    offload_param: Optional[DeepSpeedZeroOffloadParamConfig] = None
    offload_optimizer: Optional[DeepSpeedZeroOffloadOptimizerConfig] = None
    zenflow: Optional[dict] = None
    sub_group_size: int = Field(_CORE["sub_group_size"], ge=0)
    cpu_offload_param: Optional[bool] = Field(None, json_schema_extra={
        "deprecated": True, "new_param": "offload_param", "new_param_fn": _offload(DeepSpeedZeroOffloadParamConfig)})
    cpu_offload_use_pin_memory: Optional[bool] = Field(None, json_schema_extra={
        "deprecated": True, "new_param": "offload_param or offload_optimizer", "set_new_param": False})
    cpu_offload: Optional[bool] = Field(None, json_schema_extra={
        "deprecated": True, "new_param": "offload_optimizer",
        "new_param_fn": _offload(DeepSpeedZeroOffloadOptimizerConfig)})
    prefetch_bucket_size: int = _aliased("stage3_prefetch_bucket_size", ge=0)
    param_persistence_threshold: int = _aliased("stage3_param_persistence_threshold", ge=0)
    model_persistence_threshold: int = _aliased("stage3_model_persistence_threshold", ge=0)
    max_live_parameters: int = _aliased("stage3_max_live_parameters", ge=0)
    max_reuse_distance: int = _aliased("stage3_max_reuse_distance", ge=0)
    allgather_sequential: bool = _aliased("stage3_allgather_sequential")
    gather_16bit_weights_on_model_save: bool = _aliased("stage3_gather_16bit_weights_on_model_save")
    module_granularity_threshold: int = _aliased("stage3_module_granularity_threshold")
    use_all_reduce_for_fetch_params: bool = _aliased("stage3_use_all_reduce_for_fetch_params")
    stage3_gather_fp16_weights_on_model_save: bool = Field(False, json_schema_extra={
        "deprecated": True, "new_param": "gather_16bit_weights_on_model_save"})
    ignore_unused_parameters: bool = _CORE["ignore_unused_parameters"]
    legacy_stage1: bool = _CORE["legacy_stage1"]
    grad_hooks: bool = _CORE["grad_hooks"]
    round_robin_gradients: bool = _CORE["round_robin_gradients"]
    zero_hpz_partition_size: int = Field(_CORE["zero_hpz_partition_size"], ge=0)
    zero_quantized_weights: bool = _CORE["zero_quantized_weights"]
    zero_quantized_nontrainable_weights: bool = _CORE["zero_quantized_nontrainable_weights"]
    zero_quantized_gradients: bool = _CORE["zero_quantized_gradients"]
    zeropp_loco_param: Optional[dict] = None
    mics_shard_size: int = Field(_CORE["mics_shard_size"])
    mics_hierarchical_params_gather: bool = _CORE["mics_hierarchical_params_gather"]
    memory_efficient_linear: bool = _CORE["memory_efficient_linear"]
    pipeline_loading_checkpoint: bool = _CORE["pipeline_loading_checkpoint"]
    override_module_apply: bool = _CORE["override_module_apply"]
    log_trace_cache_warnings: bool = _CORE["log_trace_cache_warnings"]
    enable_sanity_checks: bool = _CORE["enable_sanity_checks"]
    save_muon_momentum_buffer_in_memory: bool = _CORE["save_muon_momentum_buffer_in_memory"]
    leaf_module: DeepSpeedZeroLeafModuleConfig = Field(default_factory=DeepSpeedZeroLeafModuleConfig)
    stage3_prefetch_mode: Optional[Any] = None

    @model_validator(mode="after")
    def _default_overlap(self):
        if self.overlap_comm is None:
            self.__dict__["overlap_comm"] = _C.lone_defaults("zero_optimization", self.stage)["overlap_comm"]
        return self

    @model_validator(mode="after")
    def _tell_of_elastic_checkpoint(self):
        if self.elastic_checkpoint:
            logger.warning("zero_optimization.elastic_checkpoint: elastic checkpointing is deprecated; every checkpoint "
                           "loads into any number of ranks")
        return self


def get_zero_config(param_dict):
    from deepspeed.runtime.config import view_of_section
    return zero_config_of(view_of_section(param_dict, "zero_optimization"))


def zero_config_of(view):
    """The section as Capstan has resolved it."""
    path = "zero_optimization"
    values = {key: value for key, value in view.section(path).items()
              if key not in _OLD_KEYS or view.given(f"{path}.{key}")}
    for name in ("offload_param", "offload_optimizer", "zenflow", "zeropp_loco_param"):
        if view.has_section(f"{path}.{name}"):
            values[name] = view.section(f"{path}.{name}")
    return DeepSpeedZeroConfig(leaf_module=view.section(f"{path}.leaf_module"), **values)

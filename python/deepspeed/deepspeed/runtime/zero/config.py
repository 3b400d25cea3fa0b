"""The section zero_optimization as a pydantic model. What a key does is decided by capstan's own schema."""

import sys
from enum import Enum
from typing import Any, Optional

from pydantic import Field, model_validator

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


_OLD_KEYS = ("cpu_offload", "cpu_offload_param", "cpu_offload_use_pin_memory")


class DeepSpeedZeroConfig(DeepSpeedConfigModel):
    stage: ZeroStageEnum = 0
    contiguous_gradients: bool = True
    reduce_scatter: bool = True
    reduce_bucket_size: int = Field(int(5e8), ge=0)
    use_multi_rank_bucket_allreduce: bool = True
    allgather_partitions: bool = True
    allgather_bucket_size: int = Field(int(5e8), ge=0)
    overlap_comm: Optional[bool] = None
    load_from_fp32_weights: bool = True
    elastic_checkpoint: bool = False
    offload_param: Optional[DeepSpeedZeroOffloadParamConfig] = None
    offload_optimizer: Optional[DeepSpeedZeroOffloadOptimizerConfig] = None
    zenflow: Optional[dict] = None
    sub_group_size: int = Field(int(1e9), ge=0)
    cpu_offload_param: Optional[bool] = Field(None, json_schema_extra={
        "deprecated": True, "new_param": "offload_param", "new_param_fn": _offload(DeepSpeedZeroOffloadParamConfig)})
    cpu_offload_use_pin_memory: Optional[bool] = Field(None, json_schema_extra={
        "deprecated": True, "new_param": "offload_param or offload_optimizer", "set_new_param": False})
    cpu_offload: Optional[bool] = Field(None, json_schema_extra={
        "deprecated": True, "new_param": "offload_optimizer",
        "new_param_fn": _offload(DeepSpeedZeroOffloadOptimizerConfig)})
    prefetch_bucket_size: int = Field(int(5e7), ge=0, alias="stage3_prefetch_bucket_size")
    param_persistence_threshold: int = Field(int(1e5), ge=0, alias="stage3_param_persistence_threshold")
    model_persistence_threshold: int = Field(sys.maxsize, ge=0, alias="stage3_model_persistence_threshold")
    max_live_parameters: int = Field(int(1e9), ge=0, alias="stage3_max_live_parameters")
    max_reuse_distance: int = Field(int(1e9), ge=0, alias="stage3_max_reuse_distance")
    allgather_sequential: bool = Field(False, alias="stage3_allgather_sequential")
    gather_16bit_weights_on_model_save: bool = Field(False, alias="stage3_gather_16bit_weights_on_model_save")
    module_granularity_threshold: int = Field(0, alias="stage3_module_granularity_threshold")
    use_all_reduce_for_fetch_params: bool = Field(False, alias="stage3_use_all_reduce_for_fetch_params")
    stage3_gather_fp16_weights_on_model_save: bool = Field(False, json_schema_extra={
        "deprecated": True, "new_param": "gather_16bit_weights_on_model_save"})
    ignore_unused_parameters: bool = True
    legacy_stage1: bool = False
    grad_hooks: bool = True
    round_robin_gradients: bool = False
    zero_hpz_partition_size: int = Field(1, ge=0)
    zero_quantized_weights: bool = False
    zero_quantized_nontrainable_weights: bool = False
    zero_quantized_gradients: bool = False
    zeropp_loco_param: Optional[dict] = None
    mics_shard_size: int = Field(-1)
    mics_hierarchical_params_gather: bool = False
    memory_efficient_linear: bool = True
    pipeline_loading_checkpoint: bool = False
    override_module_apply: bool = True
    log_trace_cache_warnings: bool = False
    enable_sanity_checks: bool = False
    save_muon_momentum_buffer_in_memory: bool = False
    leaf_module: DeepSpeedZeroLeafModuleConfig = Field(default_factory=DeepSpeedZeroLeafModuleConfig)
    stage3_prefetch_mode: Optional[Any] = None

    @model_validator(mode="after")
    def _default_overlap(self):
        if self.overlap_comm is None:
            self.__dict__["overlap_comm"] = self.stage == ZeroStageEnum.weights
        return self

    @model_validator(mode="after")
    def _tell_of_elastic_checkpoint(self):
        if self.elastic_checkpoint:
            logger.warning("zero_optimization.elastic_checkpoint: elastic checkpointing is deprecated; every checkpoint "
                           "loads into any number of ranks")
        return self


def get_zero_config(param_dict):
    given = param_dict.get("zero_optimization", {})
    if isinstance(given, bool):
        given = {"stage": 1 if given else 0}
    return DeepSpeedZeroConfig(**given)


def zero_config_of(view):
    """The section as Capstan has resolved it."""
    path = "zero_optimization"
    values = {key: value for key, value in view.section(path).items()
              if key not in _OLD_KEYS or view.given(f"{path}.{key}")}
    for name in ("offload_param", "offload_optimizer", "zenflow", "zeropp_loco_param"):
        if view.has_section(f"{path}.{name}"):
            values[name] = view.section(f"{path}.{name}")
    return DeepSpeedZeroConfig(leaf_module=view.section(f"{path}.leaf_module"), **values)

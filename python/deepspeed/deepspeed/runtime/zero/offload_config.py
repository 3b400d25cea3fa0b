"""Where parameters and optimizer state live, as sections of the configuration."""

from enum import Enum
from pathlib import Path
from typing import Optional

from pydantic import Field, model_validator

from deepspeed.runtime.config_utils import DeepSpeedConfigModel, lone_defaults


_PARAM = lone_defaults("zero_optimization.offload_param")
_OPTIMIZER = lone_defaults("zero_optimization.offload_optimizer")


class OffloadDeviceEnum(str, Enum):
    none = "none"
    cpu = "cpu"
    nvme = "nvme"


class OffloadStateTypeEnum(str, Enum):
    optim_states = "optim_states"
    hp_params = "hp_params"
    lp_params = "lp_params"
    lp_grads = "lp_grads"
    contiguous_grad_buffer = "contiguous_grad_buffer"


class DeepSpeedZeroOffloadParamConfig(DeepSpeedConfigModel):
    device: OffloadDeviceEnum = _PARAM["device"]
    nvme_path: Optional[Path] = None
    buffer_count: int = Field(_PARAM["buffer_count"], ge=0)
    buffer_size: int = Field(_PARAM["buffer_size"], ge=0)
    max_in_cpu: int = Field(_PARAM["max_in_cpu"], ge=0)
    pin_memory: bool = _PARAM["pin_memory"]


class DeepSpeedZeroOffloadOptimizerConfig(DeepSpeedConfigModel):
    device: OffloadDeviceEnum = _OPTIMIZER["device"]
    nvme_path: Optional[Path] = None
    buffer_count: int = Field(_OPTIMIZER["buffer_count"], ge=0)
    pin_memory: bool = _OPTIMIZER["pin_memory"]
    pipeline_read: bool = _OPTIMIZER["pipeline_read"]
    pipeline_write: bool = _OPTIMIZER["pipeline_write"]
    fast_init: bool = _OPTIMIZER["fast_init"]
    ratio: float = Field(_OPTIMIZER["ratio"], ge=0.0, le=1.0)
    super_offload: bool = _OPTIMIZER["super_offload"]
    cpuadam_cores_perc: float = Field(_OPTIMIZER["cpuadam_cores_perc"], ge=0.0, le=1.0)
    pipeline: bool = False

    @model_validator(mode="after")
    def _set_pipeline(self):
        self.__dict__["pipeline"] = self.pipeline_read or self.pipeline_write
        return self

"""Sharded construction and access to sharded parameters."""

from deepspeed.later import names_of
from deepspeed.runtime.zero.generation import unwrap_model_for_generation  # noqa: F401
from deepspeed.runtime.zero.parameter_offload import DeepSpeedZeRoOffload  # noqa: F401
from deepspeed.runtime.zero.partition_parameters import (GatheredParameters, Init, MiCS_Init,  # noqa: F401
                                                         ZeroParamStatus, ZeroParamType, register_external_parameter)
from deepspeed.runtime.zero.tiling import TiledLinear, TiledLinearReturnBias  # noqa: F401

globals().update(names_of(__name__))

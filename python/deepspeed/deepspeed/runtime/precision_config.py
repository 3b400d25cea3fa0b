"""The sections fp16 and bf16 as pydantic models."""

import math
from typing import Any

from pydantic import Field, field_validator, model_validator

from deepspeed.runtime.config_utils import DeepSpeedConfigModel


class DeepSpeedBF16Config(DeepSpeedConfigModel):
    enabled: bool = False
    immediate_grad_update: bool = True
    check_grad_overflow: bool = False
    bf16_master_weights_and_grads: bool = False
    bf16_optimizer_states: bool = False


class DeepSpeedFP16Config(DeepSpeedConfigModel):
    enabled: bool = False
    auto_cast: bool = False
    loss_scale: float = 0
    initial_scale_power: int = 16
    loss_scale_window: Any = 1000
    hysteresis: int = Field(2, ge=0)
    consecutive_hysteresis: bool = False
    min_loss_scale: Any = 1
    fp16_master_weights_and_grads: bool = False

    @field_validator("loss_scale", mode="before")
    @classmethod
    def _check_loss_scale(cls, value):
        if isinstance(value, bool):
            raise ValueError("fp16.loss_scale must be a number, not true or false")
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ValueError(f"fp16.loss_scale must be a number, got {type(value).__name__}") from None
        if not math.isfinite(number) or number < 0:
            raise ValueError("fp16.loss_scale must be 0 (dynamic) or a positive number")
        return number

    @model_validator(mode="after")
    def _check_dynamic(self):
        if not self.enabled or self.loss_scale != 0:
            return self
        for name in ("loss_scale_window", "min_loss_scale"):
            value = getattr(self, name)
            if isinstance(value, bool):
                raise ValueError(f"fp16.{name} is true or false: give an integer of at least 1")
            try:
                number = int(value)
                exact = float(value) == number
            except (TypeError, ValueError, OverflowError):
                raise ValueError(f"fp16.{name} is {value!r}: give an integer of at least 1") from None
            if number <= 0 or (name == "loss_scale_window" and not exact):
                raise ValueError(f"fp16.{name} must be positive with a dynamic loss scale, got {value!r}")
            self.__dict__[name] = number if exact else float(value)
        return self

    def initial_dynamic_scale(self):
        return 2**self.initial_scale_power

    def dynamic_loss_scale_args(self):
        return {"init_scale": 2**self.initial_scale_power, "scale_window": self.loss_scale_window,
                "delayed_shift": self.hysteresis, "consecutive_hysteresis": self.consecutive_hysteresis,
                "min_scale": self.min_loss_scale}


def get_bfloat16_config(param_dict):
    return DeepSpeedBF16Config(**(param_dict.get("bf16") or param_dict.get("bfloat16") or {}))


def get_float16_config(param_dict):
    return DeepSpeedFP16Config(**(param_dict.get("fp16") or {}))

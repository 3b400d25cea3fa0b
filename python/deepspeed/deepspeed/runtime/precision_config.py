"""The sections fp16 and bf16 as pydantic models."""

import math
from typing import Any

from pydantic import Field, field_validator, model_validator

from capstan import _C
from deepspeed.runtime.config_utils import DeepSpeedConfigModel, lone_defaults


_BF16, _FP16 = lone_defaults("bf16"), lone_defaults("fp16")


class DeepSpeedBF16Config(DeepSpeedConfigModel):
    enabled: bool = _BF16["enabled"]
    immediate_grad_update: bool = _BF16["immediate_grad_update"]
    check_grad_overflow: bool = _BF16["check_grad_overflow"]
    bf16_master_weights_and_grads: bool = _BF16["bf16_master_weights_and_grads"]
    bf16_optimizer_states: bool = _BF16["bf16_optimizer_states"]


class DeepSpeedFP16Config(DeepSpeedConfigModel):
    enabled: bool = _FP16["enabled"]
    auto_cast: bool = _FP16["auto_cast"]
    loss_scale: float = _FP16["loss_scale"]
    initial_scale_power: int = _FP16["initial_scale_power"]
    loss_scale_window: Any = _FP16["loss_scale_window"]
    hysteresis: int = Field(_FP16["hysteresis"], ge=0)
    consecutive_hysteresis: bool = _FP16["consecutive_hysteresis"]
    min_loss_scale: Any = _FP16["min_loss_scale"]
    fp16_master_weights_and_grads: bool = _FP16["fp16_master_weights_and_grads"]

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
        return _C.initial_loss_scale(self.initial_scale_power)

    def dynamic_loss_scale_args(self):
        return {"init_scale": self.initial_dynamic_scale(), "scale_window": self.loss_scale_window,
                "delayed_shift": self.hysteresis, "consecutive_hysteresis": self.consecutive_hysteresis,
                "min_scale": self.min_loss_scale}


def get_bfloat16_config(param_dict):
    from deepspeed.runtime.config import view_of_section
    return DeepSpeedBF16Config(**view_of_section(param_dict, "bf16", "bfloat16").section("bf16"))


def get_float16_config(param_dict):
    from deepspeed.runtime.config import view_of_section
    return DeepSpeedFP16Config(**view_of_section(param_dict, "fp16").section("fp16"))

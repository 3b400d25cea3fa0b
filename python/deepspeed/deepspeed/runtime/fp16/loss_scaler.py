"""Loss scaling under DeepSpeed's names; the engine keeps the scale."""

from deepspeed.runtime.base_optimizer import LossScaler

INITIAL_LOSS_SCALE, SCALE_WINDOW, DELAYED_SHIFT = "init_scale", "scale_window", "delayed_shift"
CONSECUTIVE_HYSTERESIS, MIN_LOSS_SCALE = "consecutive_hysteresis", "min_scale"


class LossScalerBase(LossScaler):
    pass


class DynamicLossScaler(LossScalerBase):
    pass

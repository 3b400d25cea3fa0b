"""Not available yet."""

from deepspeed.later import later_class

DeepSpeedHybridEngine = later_class("deepspeed.DeepSpeedHybridEngine")

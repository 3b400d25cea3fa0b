"""Not available yet."""

from deepspeed.later import later_class

MoE = later_class("deepspeed.moe.layer.MoE")

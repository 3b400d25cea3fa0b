"""Checkpoints on disk."""

from deepspeed.checkpoint.constants import UNIVERSAL_CHECKPOINT_INFO  # noqa: F401
from deepspeed.later import later_class, later_function

DeepSpeedCheckpoint = later_class("deepspeed.checkpoint.DeepSpeedCheckpoint")
ZeROCheckpoint = later_class("deepspeed.checkpoint.ZeROCheckpoint")
model_3d_desc = later_class("deepspeed.checkpoint.model_3d_desc")
get_model_3d_descriptor = later_function("deepspeed.checkpoint.get_model_3d_descriptor")

"""Checkpoints on disk."""

from deepspeed.checkpoint.constants import UNIVERSAL_CHECKPOINT_INFO  # noqa: F401
from deepspeed.checkpoint.deepspeed_checkpoint import (DeepSpeedCheckpoint, ZeROCheckpoint,  # noqa: F401
                                                       get_model_3d_descriptor)
from deepspeed.checkpoint.model_3d import model_3d_desc  # noqa: F401

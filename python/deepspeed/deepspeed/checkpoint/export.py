"""Checkpoints for the real DeepSpeed."""

import os

from capstan import _C


def export_checkpoint(checkpoint, output_dir, stage=None, world_size=None):
    """Writes one checkpoint of save_checkpoint(), e.g. path/global_step100, in DeepSpeed's layout below output_dir.

    `stage` and `world_size` are those of the run that will resume; by default as it was saved.
    """
    _C.export_deepspeed(os.fspath(checkpoint), os.fspath(output_dir), -1 if stage is None else stage,
                        0 if world_size is None else world_size)

"""Sequence parallelism, and computing in tiles of a sequence."""

from deepspeed.later import names_of
from deepspeed.runtime.sequence_parallel.tiled import (SequenceTiledCompute, TiledFusedLogitsLoss, TiledMLP,  # noqa: F401
                                                       sequence_tiled_compute)

globals().update(names_of(__name__))

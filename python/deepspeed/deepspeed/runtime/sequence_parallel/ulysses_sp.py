"""Sequence parallelism, and computing in tiles of a sequence."""

from deepspeed.runtime.sequence_parallel.attention import UlyssesSPAttentionHF  # noqa: F401
from deepspeed.runtime.sequence_parallel.loader import UlyssesSPDataLoaderAdapter  # noqa: F401
from deepspeed.runtime.sequence_parallel.tiled import (SequenceTiledCompute, TiledFusedLogitsLoss, TiledMLP,  # noqa: F401
                                                       sequence_tiled_compute)

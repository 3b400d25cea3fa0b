"""Topologies and their grids, under the name that scripts import them by."""

from deepspeed.runtime.pipe.axes import (PipeDataParallelTopology, PipeModelDataParallelTopology,  # noqa: F401
                                         ProcessTopology, _prime_factors)
from deepspeed.runtime.pipe.grid import PipelineParallelGrid  # noqa: F401

"""Trains models that do not fit on one device: ZeRO stages 0 to 3 over one C++ engine.

    import capstan
    engine = capstan.initialize(model, "ds_config.json", optimizer=optimizer)
    for batch in loader:
        engine.backward(engine(batch))
        engine.step()
"""

import torch  # noqa: F401  the extension needs libtorch's libraries

from capstan import optimizers, pipeline, profiler, sequence_parallel, tensor_parallel, tiled
from capstan.engine import Engine
from capstan.errors import CommError, ConfigError, Error, InternalError, IoError, NotAvailable, OutOfMemoryError
from capstan.initialize import initialize
from capstan.params import gathered
from capstan.pipeline_engine import PipelineEngine
from capstan.process_group import init_distributed
from capstan.sharded_init import sharded
from capstan.states import read_local_state, read_state, write_local_state, write_state
from capstan.stored_weights import StoredWeights, export_weights


def estimate(model, batch, config=None, **more):
    """How much memory training takes, without weights or a GPU; see capstan.estimates.estimate()."""
    from capstan import estimates  # fake tensors take a while to import
    return estimates.estimate(model, batch, config, **more)


__version__ = "0.1.0"
__all__ = ["CommError", "ConfigError", "Engine", "Error", "InternalError", "IoError", "NotAvailable", "OutOfMemoryError",
           "PipelineEngine", "StoredWeights", "estimate", "export_weights", "gathered", "init_distributed", "initialize",
           "optimizers", "pipeline", "profiler", "read_local_state", "read_state", "sequence_parallel", "sharded",
           "tensor_parallel", "tiled", "write_local_state", "write_state"]

"""Pipeline parallelism."""

from deepspeed.runtime.pipe.module import LayerSpec, PipelineModule, TiedLayerSpec  # noqa: F401
from deepspeed.runtime.pipe.topology import ProcessTopology  # noqa: F401

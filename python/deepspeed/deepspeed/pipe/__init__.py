"""Pipeline parallelism: what scripts import."""

from deepspeed.runtime.pipe import LayerSpec, PipelineModule, ProcessTopology, TiedLayerSpec  # noqa: F401

"""Pipeline parallelism: the names only."""

from deepspeed.runtime.pipe import LayerSpec, PipelineModule, TiedLayerSpec  # noqa: F401

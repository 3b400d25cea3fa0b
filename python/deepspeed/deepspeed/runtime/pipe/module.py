"""Not available yet."""

from deepspeed.runtime.pipe import LayerSpec, PipelineModule, TiedLayerSpec  # noqa: F401

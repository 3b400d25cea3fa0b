"""Pipeline parallelism: the names only."""

from deepspeed.later import later_class

PipelineModule = later_class("deepspeed.pipe.PipelineModule")
LayerSpec = later_class("deepspeed.pipe.LayerSpec")
TiedLayerSpec = later_class("deepspeed.pipe.TiedLayerSpec")

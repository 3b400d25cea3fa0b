"""Not available yet."""

from deepspeed.later import later_class

ProcessTopology = later_class("deepspeed.runtime.pipe.topology.ProcessTopology")
PipeDataParallelTopology = later_class("deepspeed.runtime.pipe.topology.PipeDataParallelTopology")
PipeModelDataParallelTopology = later_class("deepspeed.runtime.pipe.topology.PipeModelDataParallelTopology")
PipelineParallelGrid = later_class("deepspeed.runtime.pipe.topology.PipelineParallelGrid")

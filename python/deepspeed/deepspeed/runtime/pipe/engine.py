"""Not available yet."""

from deepspeed.later import later_class

PipelineEngine = later_class("deepspeed.PipelineEngine")


class PipelineError(Exception):
    pass

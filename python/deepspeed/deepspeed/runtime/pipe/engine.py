"""PipelineEngine: trains a PipelineModule."""

from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.pipe.module import PipelineError  # noqa: F401


class PipelineEngine(DeepSpeedEngine):
    """Trains a PipelineModule over its stages."""

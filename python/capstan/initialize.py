"""capstan.initialize: a model and its configuration become an engine."""

from capstan import _C, pipeline
from capstan.engine import Engine
from capstan.pipeline_engine import PipelineEngine


def initialize(model, config, *, optimizer=None, lr_scheduler=None, group=None):
    """An Engine; a PipelineEngine for a stage that capstan.pipeline.split() gave, and for a model that it knows where the
    configuration has several stages."""
    config = _C.read_config(config)
    model = pipeline.split_as_configured(model, _C.resolve_config(config, door=_C.Door.CAPSTAN, reads_only=True), optimizer)
    kind = PipelineEngine if isinstance(model, pipeline.SplitModel) else Engine
    return kind(model, config, optimizer=optimizer, lr_scheduler=lr_scheduler, group=group)

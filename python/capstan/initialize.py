"""capstan.initialize: a model and its configuration become an engine."""

from capstan import _C, pipeline
from capstan.engine import Engine
from capstan.errors import ConfigError
from capstan.pipeline_engine import PipelineEngine


def initialize(model, config, *, optimizer=None, lr_scheduler=None, group=None):
    """An Engine; a PipelineEngine for a stage that capstan.pipeline.split() gave, and for a model that it knows where the
    configuration has several stages."""
    config = _C.read_config(config)
    try:
        view = _C.resolve_config(config, door=_C.Door.CAPSTAN, reads_only=True)
    except ConfigError:
        view = None  # all that is wrong is told when the engine reads it
    if view is not None:
        model = pipeline.split_as_configured(model, view, optimizer)
    kind = PipelineEngine if isinstance(model, pipeline.SplitModel) else Engine
    return kind(model, config, optimizer=optimizer, lr_scheduler=lr_scheduler, group=group)

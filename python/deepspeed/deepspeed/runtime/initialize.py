"""deepspeed.initialize: a model and its configuration become an engine."""

import os

from capstan.errors import ConfigError
from capstan.pipeline import SplitModel, split_as_configured
from deepspeed.accelerator import get_accelerator
from deepspeed.comm.accelerate_count import check_count
from deepspeed.comm.comm import init_distributed
from deepspeed.runtime.config import DeepSpeedConfig, view_of
from deepspeed.runtime.constants import TORCH_DISTRIBUTED_DEFAULT_PORT
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.runtime.pipe.grid import grid_of
from deepspeed.runtime.pipe.module import PipelineModule
from deepspeed.runtime.zero.partition_parameters import restore_init_context, shutdown_init_context
from deepspeed.utils.logging import log_dist
from deepspeed.version import version


def _config_of(args, config):
    """The one configuration that was given, by argument or in `args`."""
    if hasattr(args, "deepscale_config") and args.deepscale_config is not None:
        if getattr(args, "deepspeed_config", None) is None:
            args.deepspeed_config = args.deepscale_config
        args.deepscale_config = None
    in_args = getattr(args, "deepspeed_config", None)
    assert in_args is None or config is None, (
        "there are two configurations: pass either initialize(config=...) or args.deepspeed_config")
    config = in_args if config is None else config
    assert config is not None, "there is no configuration: pass initialize(config=...) or --deepspeed_config FILE"
    return config


def _cut(model, config, optimizer, model_parameters):
    """The model and its parameters; of this rank's stage where the configuration has several."""
    try:
        view = view_of(config)
    except ConfigError:
        return model, model_parameters  # all that is wrong is told when the engine reads it
    stage = split_as_configured(model, view, optimizer)
    if stage is model or model_parameters is None:
        return stage, model_parameters
    own = set(map(id, stage.parameters()))

    def kept(group):
        return {**group, "params": [p for p in group["params"] if id(p) in own]} if isinstance(group, dict) else group

    return stage, [kept(each) for each in model_parameters if isinstance(each, dict) or id(each) in own]


def initialize(args=None, model=None, optimizer=None, model_parameters=None, training_data=None, lr_scheduler=None,
               distributed_port=TORCH_DISTRIBUTED_DEFAULT_PORT, mpu=None, dist_init_required=None, collate_fn=None,
               config=None, mesh_param=None, config_params=None):
    """(engine, engine.optimizer, engine.training_dataloader, engine.lr_scheduler)"""
    log_dist(f"DeepSpeed info: version={version}, engine=capstan", ranks=[0])
    assert model is not None, "deepspeed.initialize requires a model"
    shutdown_init_context()
    try:
        backend = get_accelerator().communication_backend_name()
        init_distributed(dist_backend=backend, distributed_port=distributed_port,
                         dist_init_required=dist_init_required)
        check_count()
        if args is not None and getattr(args, "device_rank", None) is not None and "LOCAL_RANK" not in os.environ:
            os.environ["LOCAL_RANK"] = str(args.device_rank)
        given = _config_of(args, config if config is not None else config_params)
        if not isinstance(model, (PipelineModule, SplitModel)):
            model, model_parameters = _cut(model, given, optimizer, model_parameters)
        piped = isinstance(model, (PipelineModule, SplitModel))
        if piped:
            assert mpu is None, "mpu must be None with pipeline parallelism"
            mpu = model.mpu() if isinstance(model, PipelineModule) else grid_of(model.num_stages)
        parsed = given if isinstance(given, DeepSpeedConfig) else DeepSpeedConfig(
            given, mpu, mesh_param=mesh_param, trains=True, model=None if piped else model)
        kind = PipelineEngine if piped else DeepSpeedEngine
        engine = kind(args=args, model=model, optimizer=optimizer, model_parameters=model_parameters,
                      training_data=training_data, lr_scheduler=lr_scheduler, mpu=mpu,
                      dist_init_required=dist_init_required, collate_fn=collate_fn, config=given, config_class=parsed)
    finally:
        restore_init_context()
    return engine, engine.optimizer, engine.training_dataloader, engine.lr_scheduler


def add_config_arguments(parser):
    """Adds --deepspeed and --deepspeed_config (and their older names) to a script's parser."""
    group = parser.add_argument_group("DeepSpeed", "DeepSpeed configurations")
    group.add_argument("--deepspeed", default=False, action="store_true", help="Enable DeepSpeed")
    group.add_argument("--deepspeed_config", default=None, type=str, help="DeepSpeed json configuration file.")
    group.add_argument("--deepscale", default=False, action="store_true", help="Deprecated: use --deepspeed")
    group.add_argument("--deepscale_config", default=None, type=str, help="Deprecated: use --deepspeed_config")
    return parser

"""DeepSpeedConfig: the configuration as attributes. capstan reads, checks and completes it; nothing is decided here."""

import contextlib
import functools
import inspect

import torch
import torch.distributed as dist

from capstan import _C
from capstan.errors import ConfigError
from deepspeed.runtime import constants, tensor_parallel
from deepspeed.utils.logging import logger

ADAGRAD_OPTIMIZER, ADAM_OPTIMIZER, ADAMW_OPTIMIZER = "adagrad", "adam", "adamw"
LAMB_OPTIMIZER, LION_OPTIMIZER, MUON_OPTIMIZER = "lamb", "lion", "muon"
ONEBIT_ADAM_OPTIMIZER, ZERO_ONE_ADAM_OPTIMIZER, ONEBIT_LAMB_OPTIMIZER = "onebitadam", "zerooneadam", "onebitlamb"
MUADAM_OPTIMIZER, MUADAMW_OPTIMIZER, MUSGD_OPTIMIZER = "muadam", "muadamw", "musgd"
DEEPSPEED_OPTIMIZERS = [ADAGRAD_OPTIMIZER, ADAM_OPTIMIZER, ADAMW_OPTIMIZER, LAMB_OPTIMIZER, ONEBIT_ADAM_OPTIMIZER,
                        ONEBIT_LAMB_OPTIMIZER, ZERO_ONE_ADAM_OPTIMIZER, MUADAM_OPTIMIZER, MUADAMW_OPTIMIZER,
                        MUSGD_OPTIMIZER, LION_OPTIMIZER, MUON_OPTIMIZER]
TORCH_ADAM_PARAM, ADAM_W_MODE, ADAM_W_MODE_DEFAULT = "torch_adam", "adam_w_mode", True


class DeepSpeedConfigError(ConfigError, AssertionError):
    """A wrong configuration. DeepSpeed raises ValueError for some and AssertionError for others: this is both."""


@contextlib.contextmanager
def _as_deepspeed_errors():
    try:
        yield
    except DeepSpeedConfigError:
        raise
    except ConfigError as error:
        raise DeepSpeedConfigError(error.what, error.where, error.fix) from None


def get_gradient_clipping(param_dict):
    return view_of_section(param_dict, constants.GRADIENT_CLIPPING).value(constants.GRADIENT_CLIPPING)


def get_log_level(param_dict):
    """As it was spelt; None where nothing is said."""
    found = param_dict.get(constants.LOG_LEVEL)
    return None if found == "auto" else found


# attribute -> key
_PLAIN = {
    "train_batch_size": "train_batch_size",
    "train_micro_batch_size_per_gpu": "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "gradient_clipping",
    "gradient_allreduce_op": "gradient_allreduce_op",
    "steps_per_print": "steps_per_print",
    "dump_state": "dump_state",
    "disable_allgather": "disable_allgather",
    "prescale_gradients": "prescale_gradients",
    "gradient_predivide_factor": "gradient_predivide_factor",
    "sparse_gradients_enabled": "sparse_gradients",
    "wall_clock_breakdown": "wall_clock_breakdown",
    "memory_breakdown": "memory_breakdown",
    "dataloader_drop_last": "dataloader_drop_last",
    "zero_allow_untested_optimizer": "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer": "zero_force_ds_cpu_optimizer",
    "graph_harvesting": "graph_harvesting",
    "use_data_before_expert_parallel_": "use_data_before_expert_parallelism",
    "managed_gradient_accumulation": "managed_gradient_accumulation",
    "communication_data_type": "communication_data_type",
    "seq_parallel_communication_data_type": "seq_parallel_communication_data_type",
    "amp_enabled": "amp.enabled",
    "eigenvalue_enabled": "eigenvalue.enabled",
    "eigenvalue_verbose": "eigenvalue.verbose",
    "pld_enabled": "progressive_layer_drop.enabled",
    "curriculum_enabled_legacy": "curriculum_learning.enabled",
    "elasticity_enabled": "elasticity.enabled",
    "hybrid_engine_enabled": "hybrid_engine.enabled",
    "grad_accum_dtype": "data_types.grad_accum_dtype",
    "param_dtype": "data_types.param_dtype",
    "buffer_dtype": "data_types.buffer_dtype",
    "torch_autocast_enabled": "torch_autocast.enabled",
    "torch_autocast_dtype": "torch_autocast.dtype",
    "torch_autocast_lower_precision_safe_modules": "torch_autocast.lower_precision_safe_modules",
    "load_universal_checkpoint": "checkpoint.load_universal",
    "use_node_local_storage": "checkpoint.use_node_local_storage",
    "checkpoint_tag_validation": "checkpoint.tag_validation",
    "optimizer_legacy_fusion": "optimizer.legacy_fusion",
    "scheduler_name": "scheduler.type",
    "fp16_enabled": "fp16.enabled",
    "float16_enabled": "fp16.enabled",
    "bfloat16_enabled": "bf16.enabled",
    "zero_optimization_stage": "zero_optimization.stage",
}


def _classes_of(module, base):
    """name -> (parameters, those without a default) of the classes that a configuration may name."""
    found = {}
    for name, kind in vars(module).items():
        if inspect.isclass(kind) and issubclass(kind, base) and kind is not base and not name.startswith("_"):
            params = list(inspect.signature(kind).parameters.values())[1:]  # the first is what it works on
            found[name] = ([p.name for p in params], [p.name for p in params if p.default is p.empty])
    return found


@functools.lru_cache(maxsize=1)
def _other_types():
    schedules = torch.optim.lr_scheduler
    return {"optimizer": ("a class of torch.optim", _classes_of(torch.optim, torch.optim.Optimizer)),
            "scheduler": ("a class of torch.optim.lr_scheduler", _classes_of(schedules, schedules.LRScheduler))}


def view_of(config):
    """What a configuration says, for those who train nothing with it: "auto" may be left in it."""
    if isinstance(config, DeepSpeedConfig):
        return config.view
    with _as_deepspeed_errors():
        return _C.resolve_config(_C.read_config(config), other_types=_other_types(), door=_C.Door.DEEPSPEED,
                                 reads_only=True)


def view_of_section(param_dict, *names):
    """What the core makes of these keys or sections of a configuration, without looking at the rest of it."""
    return view_of({name: param_dict[name] for name in names if param_dict.get(name) is not None})


def _stages_of(mpu):
    """Of a pipeline that the model is in already."""
    return getattr(mpu, "pipe_parallel_size", None)


def _ranks_of(mpu):
    """How many ranks train: all that do not share layers with others in a way that only `mpu` knows."""
    if _stages_of(mpu) is not None:
        return dist.get_world_size()
    for name in ("get_sequence_data_parallel_world_size", "get_data_parallel_world_size"):
        if hasattr(mpu, name):
            return getattr(mpu, name)()
    return dist.get_world_size() if dist.is_initialized() else 1


def _sizes_of(mpu, mesh_device, mesh_param):
    """Sizes of axes that an object of the caller's decides, whatever the file says."""
    if hasattr(mpu, "get_sequence_parallel_world_size"):
        return {"sequence_parallel_size": (mpu.get_sequence_parallel_world_size(), "mpu")}
    if mesh_device is not None:
        mesh_param = [mesh_device.size(mesh_device.mesh_dim_names.index(f"{axis}_parallel")) for axis in ("data", "sequence")]
    if mesh_param is None:
        return {}
    return {f"{axis}_parallel_size": (size, "mesh_param") for axis, size in zip(("data", "sequence"), mesh_param)}


class DeepSpeedConfig:
    """`trains`: an engine is about to be made of it, so that unknown keys and what is not available are errors at once;
    else warnings, for initialize() will refuse them. `model`: the one that is trained, which may be split already."""

    def __init__(self, config, mpu=None, mesh_device=None, *, mesh_param=None, trains=False, model=None):
        with _as_deepspeed_errors():
            self._document = _C.read_config(config)
        self._param_dict = self._document.root
        self.mpu = mpu
        ranks, self._decided = _ranks_of(mpu), _sizes_of(mpu, mesh_device, mesh_param)
        if model is not None:
            with _as_deepspeed_errors():
                self._decided.update(tensor_parallel.overrides(mpu, model, self._document))
            ranks *= tensor_parallel.size_of(mpu)  # it counts those that see other data
        self._ranks = ranks
        self.view = self.resolve(reads_only=not trains, lenient=not trains)
        self.world_size = self.view.world_size  # data-parallel ranks
        for what, where, _ in () if trains else self.view.warnings:
            logger.warning("%s (%s)", what, where)
        self._take()

    def resolve(self, **facts):
        """The configuration with what the caller knows beside it; see capstan._C.resolve_config."""
        facts = {"world_size": self._ranks, "stages": _stages_of(self.mpu), "other_types": _other_types(), "trains": True,
                 "door": _C.Door.DEEPSPEED, **facts, "overrides": {**self._decided, **facts.get("overrides", {})}}
        with _as_deepspeed_errors():
            return _C.resolve_config(self._document, **facts)

    def _take(self):
        for attribute, path in _PLAIN.items():
            setattr(self, attribute, self.view.value(path))
        self.log_level = get_log_level(self._param_dict)  # as it was spelt
        name = self.view.value("optimizer.type")
        self.optimizer_name = name.lower() if name and name.lower() in DEEPSPEED_OPTIMIZERS else name
        self.optimizer_params, self.scheduler_params = self._params("optimizer"), self._params("scheduler")
        self.checkpoint_tag_validation_enabled = self.checkpoint_tag_validation != "Ignore"
        self.checkpoint_tag_validation_fail = self.checkpoint_tag_validation == "Fail"
        self.zero_enabled = self.view.shards_optimizer
        self.sparse_attention = self._param_dict.get("sparse_attention")
        self.pipeline = self._param_dict["pipeline"] if self.view.has_section("pipeline") else {}

    def _params(self, section):
        """Those that were given, as numbers where they were text, and without "auto"."""
        path = f"{section}.params"
        if not self.view.has_section(path):
            return None
        values = self.view.section(path)
        return {key: value for key, value in values.items() if self.view.given(f"{path}.{key}")}

    @functools.cached_property
    def zero_config(self):
        from deepspeed.runtime.zero.config import zero_config_of
        return zero_config_of(self.view)

    @property
    def float16_config(self):
        from deepspeed.runtime.precision_config import DeepSpeedFP16Config
        return DeepSpeedFP16Config(**self.view.section("fp16"))

    @property
    def bfloat16_config(self):
        from deepspeed.runtime.precision_config import DeepSpeedBF16Config
        return DeepSpeedBF16Config(**self.view.section("bf16"))

    @property
    def monitor_config(self):
        from deepspeed.monitor.config import config_of
        return config_of(self.view)

    @property
    def comms_config(self):
        from types import SimpleNamespace
        values = self.view.section("comms_logger")
        return SimpleNamespace(comms_logger_enabled=values.pop("enabled"), comms_logger=SimpleNamespace(**values))

    def asks_for_reports(self):
        """Whether something is to be said of the run beside warnings."""
        return self.view.asks_for_reports

    def _configure_train_batch_size(self):
        with _as_deepspeed_errors():
            self._set_batch(_C.complete_batch(self.train_batch_size, self.train_micro_batch_size_per_gpu,
                                              self.gradient_accumulation_steps, self.world_size))

    def _set_batch(self, sizes):
        self.train_batch_size, self.train_micro_batch_size_per_gpu, self.gradient_accumulation_steps = sizes

    def change_batch(self, ranks, train=None, micro=None):
        """Another batch: more or fewer accumulation steps, or micro-batches of another size."""
        accumulation = self.gradient_accumulation_steps if train is None else None
        with _as_deepspeed_errors():
            micro = self.train_micro_batch_size_per_gpu if micro is None else micro
            self._set_batch(_C.complete_batch(train, micro, accumulation, ranks))

    def print_user_config(self):
        import json
        logger.info("  json = %s", json.dumps(self._param_dict, indent=4, default=repr))

    def print(self, name):
        logger.info("%s:", name)
        self.print_user_config()

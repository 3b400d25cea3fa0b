"""DeepSpeedConfig: the configuration as attributes. What it means is checked by capstan when an engine is made."""

import copy
import os

from capstan import _C
from capstan.errors import ConfigError
from deepspeed.runtime import constants

ADAGRAD_OPTIMIZER, ADAM_OPTIMIZER, ADAMW_OPTIMIZER = "adagrad", "adam", "adamw"
LAMB_OPTIMIZER, LION_OPTIMIZER, MUON_OPTIMIZER = "lamb", "lion", "muon"
ONEBIT_ADAM_OPTIMIZER, ZERO_ONE_ADAM_OPTIMIZER, ONEBIT_LAMB_OPTIMIZER = "onebitadam", "zerooneadam", "onebitlamb"
MUADAM_OPTIMIZER, MUADAMW_OPTIMIZER, MUSGD_OPTIMIZER = "muadam", "muadamw", "musgd"
DEEPSPEED_OPTIMIZERS = [ADAGRAD_OPTIMIZER, ADAM_OPTIMIZER, ADAMW_OPTIMIZER, LAMB_OPTIMIZER, ONEBIT_ADAM_OPTIMIZER,
                        ONEBIT_LAMB_OPTIMIZER, ZERO_ONE_ADAM_OPTIMIZER, MUADAM_OPTIMIZER, MUADAMW_OPTIMIZER,
                        MUSGD_OPTIMIZER, LION_OPTIMIZER, MUON_OPTIMIZER]
TORCH_ADAM_PARAM, ADAM_W_MODE, ADAM_W_MODE_DEFAULT = "torch_adam", "adam_w_mode", True


class DeepSpeedConfigError(Exception):
    pass


def _value(param_dict, name, default):
    found = param_dict.get(name, default)
    return default if found == "auto" else found


def get_gradient_clipping(param_dict):
    return _value(param_dict, constants.GRADIENT_CLIPPING, constants.GRADIENT_CLIPPING_DEFAULT)


def get_log_level(param_dict):
    return _value(param_dict, constants.LOG_LEVEL, constants.LOG_LEVEL_DEFAULT)


def get_gradient_allreduce_op(param_dict):
    found = str(_value(param_dict, "gradient_allreduce_op", "mean")).lower()
    if found not in ("mean", "sum"):
        raise ValueError(f"Invalid gradient_allreduce_op: {found!r}; expected \"mean\" or \"sum\"")
    return found


# attribute -> (section, key, default); a section of "" is the top level
_PLAIN = {
    "steps_per_print": ("", "steps_per_print", None),
    "dump_state": ("", "dump_state", False),
    "disable_allgather": ("", "disable_allgather", False),
    "prescale_gradients": ("", "prescale_gradients", False),
    "gradient_predivide_factor": ("", "gradient_predivide_factor", 1.0),
    "sparse_gradients_enabled": ("", "sparse_gradients", False),
    "wall_clock_breakdown": ("", "wall_clock_breakdown", False),
    "memory_breakdown": ("", "memory_breakdown", False),
    "dataloader_drop_last": ("", "dataloader_drop_last", False),
    "zero_allow_untested_optimizer": ("", "zero_allow_untested_optimizer", False),
    "zero_force_ds_cpu_optimizer": ("", "zero_force_ds_cpu_optimizer", True),
    "graph_harvesting": ("", "graph_harvesting", False),
    "use_data_before_expert_parallel_": ("", "use_data_before_expert_parallelism", False),
    "managed_gradient_accumulation": ("", "managed_gradient_accumulation", True),
    "communication_data_type": ("", "communication_data_type", None),
    "amp_enabled": ("amp", "enabled", False),
    "eigenvalue_enabled": ("eigenvalue", "enabled", False),
    "eigenvalue_verbose": ("eigenvalue", "verbose", False),
    "pld_enabled": ("progressive_layer_drop", "enabled", False),
    "curriculum_enabled_legacy": ("curriculum_learning", "enabled", False),
    "elasticity_enabled": ("elasticity", "enabled", False),
    "hybrid_engine_enabled": ("hybrid_engine", "enabled", False),
    "grad_accum_dtype": ("data_types", "grad_accum_dtype", None),
    "param_dtype": ("data_types", "param_dtype", None),
    "buffer_dtype": ("data_types", "buffer_dtype", None),
    "torch_autocast_enabled": ("torch_autocast", "enabled", False),
    "torch_autocast_dtype": ("torch_autocast", "dtype", None),
    "torch_autocast_lower_precision_safe_modules": ("torch_autocast", "lower_precision_safe_modules", None),
    "load_universal_checkpoint": ("checkpoint", "load_universal", False),
    "use_node_local_storage": ("checkpoint", "use_node_local_storage", False),
    "checkpoint_tag_validation": ("checkpoint", "tag_validation", "Warn"),
    "seq_parallel_communication_data_type": ("", "seq_parallel_communication_data_type", "fp32"),
}


class DeepSpeedConfig:

    def __init__(self, config, mpu=None, mesh_device=None):
        self._param_dict = self._read(config)
        self.mpu = mpu
        self.world_size = self._data_parallel_size(mpu, mesh_device)
        self._take(self._param_dict)
        self._configure_train_batch_size()
        self._check_sum_op()

    @staticmethod
    def _read(config):
        if isinstance(config, dict):
            return copy.deepcopy(config)
        text = str(config)
        try:
            return _C.read_config_argument(text)
        except ConfigError as error:
            if os.path.exists(text) or text.lstrip().startswith("{"):
                raise
            raise ValueError(f"{config!r} is no configuration: give a dict, the path of a file that exists, JSON text, or "
                             "that text in base64") from error

    @staticmethod
    def _data_parallel_size(mpu, mesh_device):
        import torch.distributed as dist
        if mpu is not None and hasattr(mpu, "get_data_parallel_world_size"):
            return mpu.get_data_parallel_world_size()
        world = dist.get_world_size() if dist.is_initialized() else 1
        if mpu is not None and hasattr(mpu, "get_sequence_parallel_world_size"):
            return world // mpu.get_sequence_parallel_world_size()
        if mesh_device is not None:
            return dist.get_world_size(mesh_device.get_group(mesh_dim="data_parallel"))
        return world

    def _take(self, params):
        for attribute, (section, key, default) in _PLAIN.items():
            source = params if not section else params.get(section) or {}
            setattr(self, attribute, _value(source, key, default))
        for name in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
            value = _value(params, name, None)
            if value is not None and not isinstance(value, int):
                value = int(value)
            setattr(self, name, value)
        self.gradient_clipping = get_gradient_clipping(params)
        self.log_level = get_log_level(params)
        self.gradient_allreduce_op = get_gradient_allreduce_op(params)
        optimizer, scheduler = params.get("optimizer") or {}, params.get("scheduler") or {}
        self.optimizer_name = optimizer.get("type")
        if self.optimizer_name is not None and self.optimizer_name.lower() in DEEPSPEED_OPTIMIZERS:
            self.optimizer_name = self.optimizer_name.lower()
        self.optimizer_params = optimizer.get("params")
        self.optimizer_legacy_fusion = optimizer.get("legacy_fusion", False)
        self.scheduler_name, self.scheduler_params = scheduler.get("type"), scheduler.get("params")
        self.checkpoint_tag_validation_enabled = str(self.checkpoint_tag_validation).upper() != "IGNORE"
        self.checkpoint_tag_validation_fail = str(self.checkpoint_tag_validation).upper() == "FAIL"
        self.sparse_attention = params.get("sparse_attention")
        self.pipeline = params.get("pipeline", {})
        self.dataloader_drop_last = bool(self.dataloader_drop_last)

    @property
    def zero_config(self):
        if "_zero_config" not in self.__dict__:
            from deepspeed.runtime.zero.config import get_zero_config
            self._zero_config = get_zero_config(self._param_dict)
        return self._zero_config

    @property
    def zero_section(self):
        """The section zero_optimization as it was given, a flag as the dict that it stands for."""
        section = self._param_dict.get("zero_optimization") or {}
        return {"stage": 1} if section is True else section

    @property
    def zero_optimization_stage(self):
        return int(_value(self.zero_section, "stage", 0) or 0)

    @property
    def zero_enabled(self):
        return self.zero_optimization_stage > 0

    @property
    def float16_config(self):
        from deepspeed.runtime.precision_config import get_float16_config
        return get_float16_config(self._param_dict)

    @property
    def bfloat16_config(self):
        from deepspeed.runtime.precision_config import get_bfloat16_config
        return get_bfloat16_config(self._param_dict)

    def _section(self, *names):
        return next((self._param_dict[n] for n in names if self._param_dict.get(n)), {})

    @property
    def fp16_enabled(self):
        return bool(_value(self._section("fp16"), "enabled", False))

    float16_enabled = fp16_enabled

    @property
    def bfloat16_enabled(self):
        return bool(_value(self._section("bf16", "bfloat16"), "enabled", False))

    @property
    def comms_config(self):
        from types import SimpleNamespace
        section = self._section("comms_logger")
        settings = SimpleNamespace(verbose=section.get("verbose", False), debug=section.get("debug", False),
                                   prof_ops=section.get("prof_ops", []), prof_all=section.get("prof_all", True))
        return SimpleNamespace(comms_logger_enabled=section.get("enabled", False), comms_logger=settings)

    def asks_for_reports(self):
        """Whether something is to be said of the run beside warnings."""
        return (self.wall_clock_breakdown or self.memory_breakdown or self.dump_state
                or self.steps_per_print not in (None, float("inf")) or self.comms_config.comms_logger_enabled
                or self.zero_section.get("log_trace_cache_warnings", False))

    def _batch_assertion(self):
        batch, micro, steps = (self.train_batch_size, self.train_micro_batch_size_per_gpu,
                               self.gradient_accumulation_steps)
        for name, value in (("Train batch size", batch), ("Micro batch size per gpu", micro),
                            ("Gradient accumulation steps", steps)):
            assert value > 0, f"{name} is {value}: give at least 1"
        assert batch == micro * steps * self.world_size, (
            f"train_batch_size {batch} is not train_micro_batch_size_per_gpu {micro} * gradient_accumulation_steps {steps} "
            f"* {self.world_size} ranks: leave one of the three out, it follows from the others")

    def _set_batch_related_parameters(self):
        batch, micro, steps = (self.train_batch_size, self.train_micro_batch_size_per_gpu,
                               self.gradient_accumulation_steps)
        if batch is not None and micro is not None and steps is None:
            steps = batch // micro // self.world_size
        elif batch is not None and micro is None:
            steps = steps or 1
            micro = batch // self.world_size // steps
        elif batch is None and micro is not None:
            steps = steps or 1
            batch = micro * steps * self.world_size
        elif batch is None:
            raise AssertionError('the batch size is missing: set train_micro_batch_size_per_gpu or train_batch_size to a '
                                 'number ("auto" is filled in by Accelerate and the Trainer only)')
        self.train_batch_size, self.train_micro_batch_size_per_gpu, self.gradient_accumulation_steps = batch, micro, steps

    def _configure_train_batch_size(self):
        self._set_batch_related_parameters()
        self._batch_assertion()

    def _check_sum_op(self):
        if self.gradient_allreduce_op != "sum":
            return
        zero = self._param_dict.get("zero_optimization")
        if self.zero_optimization_stage == 3:
            raise ValueError("gradient_allreduce_op \"sum\" is not supported with ZeRO stage 3")
        if isinstance(zero, dict) and zero.get("zenflow") is not None:
            raise ValueError("gradient_allreduce_op \"sum\" is not supported with ZenFlow")
        if (self._param_dict.get("compile") or {}).get("deepcompile"):
            raise ValueError("gradient_allreduce_op \"sum\" is not supported with DeepCompile")

    def print_user_config(self):
        import json
        from deepspeed.utils.logging import logger
        logger.info("  json = %s", json.dumps(self._param_dict, indent=4, default=repr))

    def print(self, name):
        from deepspeed.utils.logging import logger
        logger.info("%s:", name)
        self.print_user_config()

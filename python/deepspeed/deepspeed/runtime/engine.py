"""DeepSpeedEngine: capstan's engine with the members that DeepSpeed's users know."""

import contextlib
import os
import weakref

import torch

import capstan
from capstan import monitors
from capstan import params as sharded_params
from capstan.engine import LEVELS, hidden_size_of
from capstan._C import Progress, SpanReader
from capstan.errors import ConfigError
from capstan.log_place import stacklevel
from capstan.use_hooks import UseHooks
from deepspeed.comm import comm
from deepspeed.monitor.monitor import MonitorMaster
from deepspeed.runtime import optimizer_choice
from deepspeed.runtime.activation_checkpointing import checkpointing
from deepspeed.runtime.data_methods import DataMethods
from deepspeed.runtime.engine_checkpoints import EngineCheckpoints, _checkpoint_parallel_metadata  # noqa: F401
from deepspeed.runtime.engine_ranks import EngineRanks
from deepspeed.runtime.engine_settings import EngineSettings
from deepspeed.runtime.hand_back import hand_back
from deepspeed.utils.logging import log_dist, logger, set_log_level_from_string
from deepspeed.utils.z3_leaf_module import as_list
from deepspeed.utils.timer import ThroughputTimer

MEMORY_OPT_ALLREDUCE_SIZE = 500000000


def _counter(*fields):
    """One of the core's counters; setting it sets all of `fields`."""

    def change(self, value):
        progress = self._progress()
        for field in fields:
            setattr(progress, field, value)
        self._set_progress(progress)

    return property(lambda self: getattr(self._progress(), fields[0]), change)


class DeepSpeedEngine(EngineSettings, EngineRanks, DataMethods, EngineCheckpoints, capstan.Engine):

    def __init__(self, args, model, optimizer=None, model_parameters=None, training_data=None, lr_scheduler=None,
                 mpu=None, dist_init_required=None, collate_fn=None, config=None, config_class=None, mesh_device=None,
                 dont_change_device=False):
        torch.nn.Module.__init__(self)
        self.core = None
        self._last_progress = Progress()  # while there is no core
        self.module = model
        self._config, self.config = config_class, config_class._param_dict
        self._choose_log_level()
        self.client_optimizer, self.client_lr_scheduler = optimizer, lr_scheduler
        self.client_model_parameters = model_parameters
        self.mpu, self.mesh_device = mpu, mesh_device
        self._check_arguments(model, optimizer, lr_scheduler)
        sharded_params.check_values(model)
        self._split(self._config.view, self.all_ranks, optimizer)
        self._place(model, dont_change_device)
        # Masters start from the rounded values, as users of this interface know it.
        early = any(sharded_params.handle_of(p) is not None for p in model.parameters())
        self._cast_module_mixed_precision(self._mixed_precision_dtypes()[0], None, early)
        parameters = self._with_parts(self._parameters_of(model, model_parameters))
        base = optimizer_choice.choose_optimizer(self, optimizer, parameters)
        self.basic_optimizer = base
        self.monitor = None
        group, mesh = self._ranks()
        capstan.Engine.__init__(self, model, self._config, optimizer=base, group=group, device=self.device,
                                travel=self._travel(model), mesh=mesh)
        self.monitor = self.monitor or MonitorMaster(monitors.settings_of(self._config.view))
        self._make_data_parts()
        checkpointing.configure_from(self._config)
        self.optimizer = optimizer_choice.wrap_optimizer(self, base)
        self.lr_scheduler = optimizer_choice.choose_scheduler(self, lr_scheduler, base)
        self.training_dataloader = self.deepspeed_io(training_data, collate_fn=collate_fn) if training_data else None
        self.tput_timer = ThroughputTimer(self._config, batch_size=self.train_batch_size(),
                                          measured=weakref.WeakMethod(self._samples_per_second))
        self._spans = self._record_communication()
        self._grad_norm = None
        self._applied = False
        self._no_sync = False
        self.inside_no_sync_ctxt = False
        self.checkpoint_engine = None
        self.enable_backward_allreduce = True
        self._is_compiled = False
        self.loaded_checkpoint_tag = None
        self.core.expect_backward(True)

    # Construction

    def _choose_log_level(self):
        asked = self._config.log_level
        if asked is None and self._config.asks_for_reports() and "DS_LOG_LEVEL" not in os.environ:
            asked = "info"
        if asked is not None:
            set_log_level_from_string(asked)

    @staticmethod
    def _log(level, text):
        if not text.startswith("step="):  # _after_step() says that, with the optimizer's own rates
            logger.log(LEVELS[level], "%s", text, stacklevel=stacklevel())

    def _check_arguments(self, model, optimizer, lr_scheduler):
        self._assert_valid_mixed_precision_config()
        optimizer_choice.check_schedule(lr_scheduler, optimizer)

    def _make_monitors(self):
        self.monitor = MonitorMaster(monitors.settings_of(self._config.view))
        return self.monitor.writers() if self.global_rank == 0 else None

    @staticmethod
    def _parameters_of(model, model_parameters):
        if model_parameters is None:
            return [p for p in model.parameters() if p.requires_grad]
        return list(model_parameters)

    def _travel(self, model):
        if not self.torch_autocast_enabled():
            return None
        from deepspeed.runtime.torch_autocast import mark_comm_dtypes
        return mark_comm_dtypes(model, self.torch_autocast_dtype(),
                                self._config.torch_autocast_lower_precision_safe_modules)

    def _resolve(self, config, **facts):
        return config.resolve(**facts, hidden_size=hidden_size_of(self.module), overrides=self._overrides())

    def _overrides(self):
        """What the client's objects decide, whatever the file says: path -> (value, why)."""
        found, view = {}, self._config.view
        states = "capstan.optimizer_state_dtype"
        if not (getattr(self.basic_optimizer, "fp32_optimizer_states", True) or view.given(states)
                or self.param_dtype_name() == "fp32"):
            found[states] = (self.param_dtype_name(), "the optimizer keeps its states in 16 bits")
        if not (self.bfloat16_enabled() or self.fp16_enabled()) and self._is_all_bf16():
            found["bf16.enabled"] = (True, "the model comes in bf16 and stays in it")
        self._mark_leaves()
        leaves = [name for name, module in self.module.named_modules() if getattr(module, "_z3_leaf", False)]
        if leaves:
            names = "zero_optimization.leaf_module.names"
            found[names] = (sorted({*view.value(names), *leaves}), "modules marked as leaves")
        return found

    def _check_optimizer(self, optimizer):
        if self.client_optimizer is not None and self.core_config.given("optimizer.type"):
            logger.warning("the optimizer passed to initialize() is used; the section optimizer of the configuration is not")

    def _is_all_bf16(self):
        dtypes = {param.dtype for param in self.module.parameters()}
        return dtypes == {torch.bfloat16}

    def _mark_leaves(self):
        """Modules that the configuration calls leaves are marked as those are that set_z3_leaf_modules() marks."""
        from deepspeed import utils
        leaf = self._config.view.section("zero_optimization.leaf_module")
        for key, mark in (("classes", utils.set_z3_leaf_modules),
                          ("names", utils.set_z3_leaf_modules_by_name),
                          ("name_suffixes", utils.set_z3_leaf_modules_by_suffix)):
            if leaf[key]:
                mark(self.module, leaf[key], raise_if_not_found=False)

    def watch_uses(self):
        if self._use_hooks is None:
            self._use_hooks = UseHooks(self.core, self.view)

    def unwatch_uses(self):
        if self._use_hooks is not None:
            self._use_hooks.remove()
        self._use_hooks = None

    def use_handles(self):
        return [] if self._use_hooks is None else self._use_hooks._handles

    # A step

    def forward(self, *args, **kwargs):
        if self.fp16_enabled() and torch.is_grad_enabled():
            # A plain backward of this output needs scale(); one of module(...) is taken as it is.
            self.core.expect_backward(False)
        if self.training:
            self.tput_timer.start()
        if not self.torch_autocast_enabled():
            return super().forward(*args, **kwargs)
        with torch.autocast(device_type=self.device.type, dtype=self.torch_autocast_dtype()):
            return super().forward(*args, **kwargs)

    def torch_autocast_dtype(self):
        return self._config.view.autocast_dtype

    def __getattr__(self, name):
        """What the engine does not have is looked up on the model."""
        own = self.__dict__
        for table in ("_parameters", "_buffers", "_modules"):
            if name in own.get(table, {}):
                return own[table][name]
        module = own.get("_modules", {}).get("module")
        if module is not None and name in dir(module):
            return getattr(module, name)
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def train(self, mode=True):
        self.module.train(mode)
        self.training = mode
        return self

    def eval(self):
        return self.train(False)

    def backward(self, loss, retain_graph=False, scale_wrt_gas=True, allreduce_gradients=True, release_loss=False):
        assert self.basic_optimizer is not None, (
            "there is no optimizer: pass one to initialize() to use backward()")
        assert not isinstance(loss, torch.Tensor) or loss.numel() == 1, "loss must be a scalar tensor"
        super().backward(loss, retain_graph=retain_graph, average=scale_wrt_gas)
        steps = self.gradient_accumulation_steps() if scale_wrt_gas else 1
        return loss.detach() / steps if steps > 1 else loss

    def _backward_epilogue(self):
        """After a backward that the caller ran: nothing is left to do here."""

    def scale(self, loss):
        """The loss in fp32 as a plain loss.backward() needs it: times the loss scale, or what a 16-bit loss holds of it."""
        assert isinstance(loss, torch.Tensor) and loss.numel() == 1, "loss must be a scalar tensor"
        return self.core.scale(loss)

    def is_gradient_accumulation_boundary(self):
        return self.core.next_ends_step if self._boundary is None else self._boundary

    def set_gradient_accumulation_boundary(self, is_boundary):
        assert self.managed_gradient_accumulation(), (
            "set_gradient_accumulation_boundary() needs managed_gradient_accumulation")
        self._boundary = is_boundary

    def step(self, lr_kwargs=None):
        assert self.basic_optimizer is not None, "there is no optimizer: pass one to initialize() to use step()"
        assert not self.inside_no_sync_ctxt, "It is illegal to call Engine.step() inside no_sync context manager"
        boundary = self.is_gradient_accumulation_boundary()
        self._applied = False
        self.core_step(boundary)
        if boundary:
            self._after_step(lr_kwargs)
        self._note_time(boundary)

    def _note_time(self, boundary):
        self.tput_timer.stop(global_step=boundary)
        if self._spans is not None:
            comm.comms_logger.append_spans(self._spans.take(), self.core_group.size)

    def _samples_per_second(self):
        return self.core.progress.samples_per_second if self.core is not None else None

    def _record_communication(self):
        """For comm.log_summary(), where the configuration asks for it."""
        if not self._config.comms_config.comms_logger_enabled:
            return None
        comm.configure(self._config)
        return SpanReader(self.core_group, ["gather", "reduce", "exchange"])

    def core_step(self, boundary):
        self._check_open()
        self._send_groups()
        self._take_report(self._end_micro_batch(boundary), boundary)

    def _take_report(self, report, boundary):
        self._report = report
        self._note_steps()
        self.core.expect_backward(True)
        if boundary:
            self._applied = self._report.applied
            self._grad_norm = self._report.grad_norm
            if hasattr(self.optimizer, "loss_scaler"):
                self.optimizer.overflow = not self._applied

    def _after_step(self, lr_kwargs):
        if self._applied and self.lr_scheduler is not None:
            try:
                self.lr_scheduler.step(**(lr_kwargs or {}))
            except TypeError:
                self.lr_scheduler.step(self.train_batch_size())
        if self._report.log_due:
            log_dist(f"step={self.global_steps}, skipped={self.skipped_steps}, lr={self.get_lr()}, "
                     f"mom={self.get_mom()}", ranks=[0])

    def was_step_applied(self):
        return self._applied

    def get_global_grad_norm(self):
        return self._grad_norm

    @contextlib.contextmanager
    def no_sync(self):
        assert not self.zero_optimization_partition_gradients(), (
            f"no_sync context manager is incompatible with gradient partitioning logic of ZeRO stage "
            f"{self.zero_optimization_stage()}")
        assert not self.inside_no_sync_ctxt, "no_sync context manager reentry is unsupported"
        self.inside_no_sync_ctxt = True
        try:
            with super().no_sync():
                yield
        finally:
            self.inside_no_sync_ctxt = False

    @contextlib.contextmanager
    def coalesce_grad_reduction(self):
        """Several backwards, one reduction."""
        assert self.zero_optimization(), "coalesce_grad_reduction requires ZeRO stage 1, 2 or 3"
        self.core.change_no_sync(1)
        try:
            yield
        finally:
            self.core.change_no_sync(-1)
        self.core.finish_gradients()

    def allreduce_gradients(self, bucket_size=MEMORY_OPT_ALLREDUCE_SIZE):
        self.core.finish_gradients()

    def empty_partition_cache(self):
        self.core.give_back()

    # Counters

    global_steps, skipped_steps, global_samples = _counter("steps"), _counter("skipped"), _counter("samples")
    micro_steps = _counter("step_calls", "micro_steps")  # where a script sets it, a step begins at a multiple

    def _progress(self):
        return self._last_progress if self.core is None else self.core.progress

    def _set_progress(self, progress):
        if self.core is None:
            self._last_progress = progress
        else:
            self.core.progress = progress

    def _close(self, shards=()):
        self._last_progress = self._progress()
        super()._close(shards)

    # Questions

    def get_lr(self):
        return [group["lr"] for group in self.basic_optimizer.param_groups]

    def get_mom(self):
        groups = self.basic_optimizer.param_groups
        return [group["betas"] if "betas" in group else group.get("momentum", 0.0) for group in groups]

    def get_type(self):
        return [group.get("type", "lr") for group in self.basic_optimizer.param_groups]

    def set_train_batch_size(self, train_batch_size):
        self._change_batch(train=train_batch_size)

    def set_train_micro_batch_size(self, micro_batch_size):
        self._change_batch(micro=micro_batch_size)

    def _change_batch(self, **sizes):
        self._config.change_batch(self.dp_world_size, **sizes)
        self.core.set_batch(*self.get_batch_info())

    def deepspeed_io(self, dataset, batch_size=None, route="train", pin_memory=True, data_sampler=None,
                     collate_fn=None, num_local_io_workers=None):
        from deepspeed.runtime.dataloader import DeepSpeedDataLoader
        if self.curriculum_learning_enabled() and route == "train" and data_sampler is None:
            return self._curriculum_loader(dataset, batch_size, collate_fn)
        return DeepSpeedDataLoader(dataset, batch_size or self.train_micro_batch_size_per_gpu(),
                                   group=self.data_parallel_group, route=route, data_sampler=data_sampler,
                                   collate_fn=collate_fn, workers=num_local_io_workers or 0,
                                   drop_last=self._config.dataloader_drop_last, seed=self._config.view.value("capstan.seed"))

    @property
    def is_compiled(self):
        return self._is_compiled

    def compile(self, backend="inductor", compile_kwargs=None, schedule=None, compiled_autograd_enabled=False):
        if self._is_compiled:
            return
        self.compile_units(backend=backend, **(compile_kwargs or {}))
        self._is_compiled = True

    def offload_states(self, include=None, device="cpu", pin_memory=True, non_blocking=False):
        """The copies have ended when this returns, whatever `non_blocking` says, and are always page-locked."""
        from deepspeed.runtime.zero.offload_states import kinds_to_move
        kinds = kinds_to_move(include, device)
        if kinds is None or kinds:
            super().offload_states(kinds)

    def reload_states(self, non_blocking=False):
        super().reload_states()

    def destroy(self):
        if self.core is not None:
            hand_back(self)
        self.close()
        self._spans = None
        self.optimizer = self.basic_optimizer = self.lr_scheduler = None


__all__ = ["ConfigError", "DeepSpeedEngine"]

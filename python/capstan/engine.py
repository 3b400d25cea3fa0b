"""capstan.Engine: a module, a configuration and an optimizer become a train step."""

import atexit
import contextlib
import itertools
import logging
import os
import weakref

import torch
import torch.distributed as dist

from capstan import _C, activations, monitors, optimizers, params, process_group, tensor_parallel, tensors
from capstan.checkpoints import Checkpoints
from capstan.curriculum import CurriculumScheduler, check_pipeline
from capstan.errors import ConfigError
from capstan.late_parts import LateParts
from capstan.log_place import stacklevel
from capstan.model_view import ModelView
from capstan.step_profile import step_profile_of
from capstan.use_hooks import UseHooks

logger = logging.getLogger("capstan")
LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)


def hidden_size_of(model):
    """What "auto" sizes are made from; None where the model has no such idea."""
    config = getattr(model, "config", None)
    sizes = getattr(config, "hidden_sizes", None)
    size = getattr(config, "hidden_size", None) or (max(sizes) if sizes else None)
    return size if isinstance(size, int) else None


def _tensors(given, what):
    """One tensor or several, as a list."""
    items = [given] if isinstance(given, torch.Tensor) else given
    wrong = [items] if not isinstance(items, (list, tuple)) else [x for x in items if x is not None and not isinstance(x, torch.Tensor)]
    if wrong:
        raise ConfigError(f"the {what} hold a {type(wrong[0]).__name__}", "backward(outputs, gradients)",
                          "give a tensor or a list of tensors; name other arguments, as in backward(loss, retain_graph=True)")
    return list(items)


class Engine(Checkpoints, torch.nn.Module):
    """Trains `model` as `config` says: sharded over the ranks of `group`, in the precision it names.

        >>> model = torch.nn.Linear(4, 1)
        >>> engine = capstan.Engine(model, {"train_batch_size": 2},
        ...                         optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        >>> loss = engine(torch.ones(2, 4)).square().mean()
        >>> engine.backward(loss)
        >>> engine.step()

    `lr_scheduler`, a schedule over that optimizer, is saved and loaded with checkpoints; calling its step() is up to you.
    `mesh`: how many of the ranks share one model, of which each has its own part; by default each has all of it.
    """

    is_pipeline = False  # whether the model is cut into stages

    def __init__(self, model, config, *, optimizer=None, lr_scheduler=None, group=None, device=None, travel=None, mesh=None):
        super().__init__()
        self.core = self._use_hooks = self._late = self._profile = None
        self._fused = []
        self.module = model
        self.optimizer, self.lr_scheduler = optimizer, lr_scheduler
        self.given_optimizer = optimizer  # whatever a subclass puts into `optimizer`
        if not isinstance(model, torch.nn.Module):
            raise ConfigError(f"the model is a {type(model).__name__}", "initialize", "give a torch.nn.Module")
        params.check_values(model)
        process_group.init_distributed()
        self.device = torch.device(device or self._device_of(model))
        mesh = _C.MeshOptions() if mesh is None else mesh
        self.core_config = self._resolve(config, world_size=dist.get_world_size(group), stages=mesh.pipe)
        self._split(self.core_config, group, optimizer)
        self._check_optimizer(optimizer)
        self._check_pipeline()
        self.core_group = process_group.core_group(group, self.device, self.core_config)
        for what, where, fix in self.core_config.warnings:
            logger.warning("%s (%s)%s", what, where, fix and f": {fix}", stacklevel=stacklevel())
        self.view = ModelView(model, self.device, travel)
        self.view.core.ties = self._ties()
        self.group_names = optimizers.group_names(optimizer, self.view)
        given = optimizers.core_optimizer(optimizer, self.view)
        self.core = _C.Engine(self.view.core, self.core_config, self.core_group, given,
                              optimizers.shared_values(optimizer, whole=mesh.pipe == 1), self._log,
                              process_group.parts_maker(group, self.device, self.core_config, self.core_group),
                              self._make_monitors, mesh)
        self._process = os.getpid()
        _open.add(self)
        self.view.core = None
        self.curriculum = self._make_curriculum(self.core_config.curriculum)
        self.layer_drop = self.core_config.layer_drop
        self._boundary = None
        self._report = None
        self._sent_groups = None
        self._tells_rates = self.given_optimizer is not None and monitors.any_of(self.core_config)
        self._take_over()
        self._profile = step_profile_of(self)

    def _ties(self):
        """(key, stages, names of ours) of weights that several stages of a pipeline share, the same keys on all stages."""
        return []

    def _make_monitors(self):
        """Functions that take events (name, value, samples); None where this rank writes nothing at all."""
        return monitors.writers(self.core_config)

    def _resolve(self, config, **facts):
        """`config`: a dict, a file's name, JSON text, or that text in base64."""
        document = _C.read_config(config)
        return _C.resolve_config(document, hidden_size=hidden_size_of(self.module), door=_C.Door.CAPSTAN, trains=True,
                                 overrides=tensor_parallel.overrides(self.module, document), **facts)

    def _check_pipeline(self):
        said = self.core_config.has_section("pipeline") or self.core_config.given("capstan.pipeline_schedule")
        if self.is_pipeline:
            check_pipeline(curriculum_learning=self.core_config.curriculum, progressive_layer_drop=self.core_config.layer_drop)
        elif said:
            self._warn("the configuration speaks of a pipeline (pipeline, capstan.pipeline_schedule), but the model is in one "
                       "piece: that has no effect")

    def _split(self, config, group, optimizer):
        """Between tensor ranks, where the configuration says so and it has not been done."""
        size = max(1, config.value("tensor_parallel.autotp_size"))
        tensor_parallel.split(self.module, size, group, config.partition_rules)
        self.tensor_ranks, self._inputs_checked = tensor_parallel.ranks_of(self.module), False
        tensor_parallel.follow(optimizer)

    def _check_optimizer(self, optimizer):
        """One that is given takes the place of the configuration's, and its groups are where schedules set the rates."""
        if optimizer is None:
            return
        if self.core_config.given("scheduler.type"):
            raise ConfigError("the configuration's schedule cannot change the learning rates of an optimizer object", "scheduler",
                              "use a schedule of torch.optim.lr_scheduler, or name the optimizer in the configuration too "
                              "instead of passing an object")
        if self.core_config.given("optimizer.type"):
            logger.warning("the optimizer passed to initialize() is used; the section optimizer of the configuration is not")

    @staticmethod
    def _device_of(model):
        return next((p.device for p in model.parameters()), torch.device("cpu"))

    @staticmethod
    def _log(level, text):
        logger.log(LEVELS[level], "%s", text, stacklevel=stacklevel())

    def _warn(self, text):
        self._log(LEVELS.index(logging.WARNING), text)

    @property
    def has_optimizer(self):
        return self.given_optimizer is not None or self.core_config.given("optimizer.type")

    @property
    def stage(self):
        return self.core_config.value("zero_optimization.stage")

    @property
    def progress(self):
        """Counters of the run: micro_steps, steps (skipped ones included), skipped, and samples over all ranks."""
        self._check_open()
        return self.core.progress

    def _take_over(self):
        shards = self.core_config.shards_params
        for index, param in enumerate(self.view.params):
            sizes = list(param.shape)
            earlier = params.handle_of(param)
            if isinstance(earlier, _C.LooseShard):
                sizes = earlier.sizes
            elif shards and not self.core.is_whole(index):
                sizes = self.core.sizes(index)
            params.adopt(param, params.EngineParam(self, index, sizes))
            if shards:
                params.mark_sharded(param)
        if self.core_config.value("capstan.fuse_activations"):
            self._fused = activations.fuse(self.module)
        self._use_hooks = UseHooks(self.core, self.view)
        self._late = LateParts(self)
        if isinstance(self.given_optimizer, optimizers.KernelOptimizer):
            self.given_optimizer.bind(self)

    @property
    def param_dtype(self):
        return self.core_config.param_dtype

    def forward(self, *args, **kwargs):
        self._check_open()
        self.core.reload_states()
        if self.tensor_ranks is not None and self.tensor_ranks.ours and not self._inputs_checked:
            tensor_parallel.check_same(self.tensor_ranks, (args, kwargs))
            self._inputs_checked = True
        if self.core_config.casts_inputs:
            args, kwargs = tensors.cast(args, self.param_dtype), tensors.cast(kwargs, self.param_dtype)
        if self._profile is not None and self.training:
            self._profile.before_forward()
        if self.training:
            kwargs.update(self._step_keywords())
        output = self.module(*args, **kwargs)
        if not torch.is_grad_enabled() or not self.training:
            self.core.end_pass()
        return output

    @staticmethod
    def _make_curriculum(curriculum):
        return None if curriculum is None else CurriculumScheduler(curriculum)

    def _step_keywords(self):
        """What the configuration's curriculum and layer drop tell the model's forward, by the names that DeepSpeed uses.
        All of it follows from the number of the step, so a run that goes on is told the same."""
        if self.layer_drop is None and self.curriculum is None:
            return {}
        step, told = self.core.progress.steps + 1, {}
        if self.layer_drop is not None:
            told.update(progressive_layer_drop=True, pld_theta=self.layer_drop.of_step(step))
        if self.curriculum is not None:
            told["curriculum_seqlen"] = self.curriculum.update_difficulty(step)
        return told

    def backward(self, loss, gradients=None, *, retain_graph=False, average=True, already_scaled=False):
        """Differentiates the loss, scaled as the precision needs and divided by the accumulation steps.

        Like torch.autograd.backward(), backward(outputs, gradients) differentiates anything else: a tensor or several, and a
        gradient of the same shape for each (None for one of one element). The gradients are scaled and divided as a loss would
        be; already_scaled=True takes them as they are, because the loss they come from was: those of the next pipeline stage."""
        self._check_open()
        how = _C.BackwardOptions(retain_graph, average, already_scaled, self._boundary)
        if gradients is None and not isinstance(loss, torch.Tensor):
            raise ConfigError(f"the loss is a {type(loss).__name__}", "backward()",
                              "give a tensor of one element, or several tensors and their gradients")
        self._send_groups()  # now: updates may begin in backward
        if gradients is None:
            self.core.backward(loss, how)
        else:
            self.core.backward_outputs(_tensors(loss, "outputs"), _tensors(gradients, "gradients"), how)
        if self._profile is not None:
            self._profile.after_backward()

    def step(self):
        """Ends a micro-batch; updates the parameters when it was the last of a step."""
        self._check_open()
        self._send_groups()
        self._report = self._end_micro_batch(self._boundary)
        self._note_steps()
        return self._report

    def tell_validation_loss(self, loss):
        """To the monitors and the metrics file, as of the last step. Rank 0's counts; on the others it does nothing."""
        self._check_open()
        self.core.tell_validation_loss(float(loss))

    def _end_micro_batch(self, boundary):
        if self._profile is None:
            return self.core.step(boundary)
        self._profile.before_step()
        report = self.core.step(boundary)
        self._profile.after_step()
        return report

    def _note_steps(self):
        if self._report.applied and isinstance(self.given_optimizer, optimizers.KernelOptimizer):
            self.given_optimizer.note_steps(self.core.optimizer_steps)

    def _send_groups(self):
        self._late.tell(self._log)
        if isinstance(self.given_optimizer, optimizers.KernelOptimizer):
            groups = self.given_optimizer.hyper_params()
        elif self._tells_rates:  # they are the optimizer's own: only monitors ask for them
            groups = [{"lr": float(group["lr"])} for group in self.given_optimizer.param_groups]
        else:
            return
        if groups != self._sent_groups:
            self.core.set_groups(groups)
            self._sent_groups = groups

    def compile_units(self, **options):
        """torch.compile in place: the whole model, or each unit without its hooks where units are gathered or waited for."""
        units = [name for name, needed in self.core.boundaries() if needed]
        if not units:
            self.module.compile(**options)
        for name in filter(None, units):
            module = self.view.modules[name]
            if any(True for _ in module.children()):
                module.forward = torch.compile(module.forward, **options)

    @contextlib.contextmanager
    def no_sync(self):
        """Backwards inside only accumulate on this rank."""
        self.core.change_no_sync(1)
        try:
            yield
        finally:
            if self.core is not None:
                self.core.change_no_sync(-1)

    def offload_states(self, include=None):
        """Makes room on the device: states wait in page-locked host memory until they are used again. `include`: of
        "optim_states", "hp_params", "lp_params" and "lp_grads"; all of them unless it says otherwise."""
        self._check_open()
        self.core.offload_states(None if include is None else list(include))
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def reload_states(self):
        """Brings back what offload_states() moved; forward(), backward(), step(), saves and reads do so by themselves."""
        self._check_open()
        self.core.reload_states()

    def zero_grad(self, set_to_none=True):
        """Forgets all gradients since the last step."""
        self._check_open()
        for param in self.view.params:
            param.grad = None
        self.core.clear_gradients()

    def __reduce_ex__(self, protocol):
        raise ConfigError("an engine cannot be copied or pickled", type(self).__name__,
                          "copy or save its module, or save a checkpoint")

    def _check_open(self):
        if self.core is None:
            raise ConfigError("the engine is closed", type(self).__name__, "make a new one with initialize()")

    def close(self):
        """Takes every hook away and gives the memory back, but for the parameters: those that are sharded stay so, and
        the next engine takes them over. Not collective."""
        self._close(self._shards_to_leave())

    def _shards_to_leave(self):
        if self.core is None or self._process != os.getpid():  # closed, or of the process that this one was forked from
            return []
        try:
            return self.core.leave_shards()
        except Exception as error:  # what is sharded has no values then
            logger.warning("a closed engine could not finish its last update: %s", error)
            return []

    def _close(self, shards=()):
        if self.core is None:
            return
        if self._profile is not None:
            self._profile.profile.stop()
        if self._late is not None:
            self._late.remove()
        if self._use_hooks is not None:
            self._use_hooks.remove()
        activations.restore(self._fused)
        self._fused = []
        for param, shard in itertools.zip_longest(self.view.params, shards):
            params.leave(param, shard)
        if getattr(self.given_optimizer, "engine", None) is self:  # one of ours, bound to this engine
            self.given_optimizer.engine = None
            self.given_optimizer.state.clear()
        self.core = self.core_group = self.view = self._use_hooks = self._late = self.given_optimizer = None

    def __del__(self):
        with contextlib.suppress(Exception):
            self.close()


_open = weakref.WeakSet()
os.register_at_fork(after_in_child=_open.clear)  # a child has none of their threads, and no peer to leave


@atexit.register
def _close_all():
    """Engines end before the interpreter: a thread of a backend that drops a tensor of Python's later ends the program."""
    for engine in list(_open):
        engine._close()
    params.forget_left()
    process_group.leave()

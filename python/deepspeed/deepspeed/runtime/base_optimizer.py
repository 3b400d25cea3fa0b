"""What engine.optimizer is at ZeRO stages and in 16 bits: the client's optimizer with what users ask of a wrapper."""

import contextlib
import types

import torch

from capstan import _C
from deepspeed.later import refuse
from deepspeed.runtime import flat_states
from deepspeed.runtime.keyed_states import KeyedStates, flat_part
from deepspeed.utils.logging import logger


class DeepSpeedOptimizer:
    """The root that isinstance checks name."""


class LossScaler:
    """The engine's loss scale under the names of DeepSpeed's scalers."""

    def __init__(self, engine):
        self._engine = engine
        settings = engine._config.view.section("fp16")
        self.dynamic = engine.dynamic_loss_scale()
        self.scale_window = settings["loss_scale_window"]
        self.min_scale = settings["min_loss_scale"]
        self.scale_factor = _C.LOSS_SCALE_FACTOR
        self.delayed_shift = settings["hysteresis"]
        self.consecutive_hysteresis = settings["consecutive_hysteresis"]
        self.raise_error_at_min_scale = True

    @property
    def cur_scale(self):
        return self._engine.core.loss_scale

    @cur_scale.setter
    def cur_scale(self, value):
        self._engine.core.set_loss_scale(float(value))

    loss_scale = cur_scale

    @property
    def cur_iter(self):
        return self._engine.core.progress.steps

    @property
    def last_overflow_iter(self):
        return self._engine.core.scale_state[0]

    @property
    def cur_hysteresis(self):
        return self._engine.core.scale_state[1]

    dynamic_loss_scale = property(lambda self: self.dynamic)

    def scale_gradient(self, module, grad_in, grad_out):
        return tuple(self.cur_scale * grad for grad in grad_in)


class ZeROOptimizer(DeepSpeedOptimizer):
    """`optimizer` is the client's; the engine keeps masters, moments and gradients."""

    def __init__(self, engine, optimizer):
        self.optimizer, self._engine = optimizer, engine
        self.loss_scaler = LossScaler(engine)
        self.overflow = False
        self.param_names = {p: n for n, p in engine.module.named_parameters()}
        self.custom_loss_scaler = False
        optimizer.state = KeyedStates(dict, optimizer.state, engine, optimizer)
        if engine.zero_optimization() and not engine.zero_optimization_partition_weights():
            flat_states.show_flat(engine, optimizer)

    @property
    def engine(self):
        return self._engine

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, value):
        self.optimizer.param_groups = value

    @property
    def state(self):
        return self.optimizer.state

    @state.setter
    def state(self, value):
        self.optimizer.state = value

    @property
    def defaults(self):
        return self.optimizer.defaults

    @property
    def dtype(self):
        return self._engine.param_dtype

    low_precision_dtype = dtype

    @property
    def loss_scale(self):
        return self.loss_scaler.cur_scale

    @loss_scale.setter
    def loss_scale(self, value):
        self.loss_scaler.cur_scale = value

    cur_scale = loss_scale

    @property
    def cur_iter(self):
        return self.loss_scaler.cur_iter

    @property
    def dynamic_loss_scale(self):
        return self.loss_scaler.dynamic

    @property
    def loss_scale_config(self):
        return types.SimpleNamespace(dynamic_loss_scale=self.dynamic_loss_scale, cur_scale=self.loss_scale,
                                     cur_iter=self.cur_iter, last_overflow_iteration=self.loss_scaler.last_overflow_iter,
                                     scale_factor=self.loss_scaler.scale_factor,
                                     scale_window=self.loss_scaler.scale_window,
                                     min_loss_scale=self.loss_scaler.min_scale,
                                     use_grad_scaling=self._engine.fp16_enabled())

    def needs_scaler(self):
        """Whether a plain loss.backward() needs engine.scale(loss) first."""
        return self._engine.fp16_enabled()

    @property
    def clip_grad(self):
        return self._engine.gradient_clipping()

    @property
    def _global_grad_norm(self):
        return self._engine.get_global_grad_norm()

    def backward(self, loss, retain_graph=False, **kwargs):
        self._engine.backward(loss, retain_graph=retain_graph, **kwargs)

    def step(self, closure=None):
        self._engine.core_step(True)

    def zero_grad(self, set_to_none=True):
        for param in self._engine.view.params:
            param.grad = None

    def train(self):
        getattr(self.optimizer, "train", lambda: None)()

    def eval(self):
        getattr(self.optimizer, "eval", lambda: None)()

    def add_param_group(self, group):
        refuse("adding a parameter group to a running engine")

    def state_dict(self):
        """Of this rank alone: the optimizer's own state_dict(), whose states are this rank's parts. Not collective."""
        return {"optimizer_state_dict": type(self.optimizer).state_dict(self.optimizer), "loss_scale": self.loss_scale,
                "overflow": self.overflow, "clip_grad": self.clip_grad}

    def load_state_dict(self, state, *args, **kwargs):
        """Hyper-parameters and the loss scale; masters and moments come with engine.load_checkpoint()."""
        if "loss_scale" in state and self._engine.fp16_enabled():
            self.loss_scale = state["loss_scale"]
        inner = state.get("optimizer_state_dict") or {}
        for group, saved in zip(self.param_groups, inner.get("param_groups", ())):
            group.update({key: value for key, value in saved.items() if key != "params"})
        if inner.get("state"):
            logger.warning("optimizer.load_state_dict() takes hyper-parameters and the loss scale only; to load the states call "
                           "engine.load_checkpoint(), which distributes them over the ranks")

    @contextlib.contextmanager
    def _kept_away(self):
        """What offload_states() moved away, and a read inside brings back, is away again at the end."""
        away = self._engine.core.offloaded_states
        yield away
        if away:
            self._engine.core.offload_states(away)

    def _indices(self):
        """Of every trained parameter in the core, by group."""
        names = self._engine.view.names
        return [[names.index(name) for name in group] for group in self._engine.group_names]

    def _look(self, kind, read):
        """read(index) of every parameter, by group; copies on the host of what is away."""
        with self._kept_away() as away:
            found = [[read(index) for index in group] for group in self._indices()]
            return [[part.cpu() for part in parts] for parts in found] if kind in away else found

    def _parts(self, which):
        """This rank's part of a column, one flat tensor per group."""
        found = self._look("hp_params", lambda index: self._engine.core.local(index, which))
        return [flat_part(parts, group) for group, parts in enumerate(found)]

    @property
    def fp32_groups_flat(self):
        return self._parts("master")

    single_partition_of_fp32_groups = fp32_partitioned_groups_flat = fp32_groups_flat_partition = fp32_groups_flat

    @property
    def averaged_gradients(self):
        """Between backward and step: this rank's part of each gradient, by group."""
        return dict(enumerate(self._look("lp_grads", lambda index: self._engine.core.local(index, "gradient"))))

    def _get_norm_groups(self):
        """The norm of each group's gradient, between backward and step. Collective."""
        with self._kept_away():
            return list(torch.tensor(self._engine.core.gradient_norms(self._indices())))

    def get_fp32_grad_partitions(self):
        """Between backward and step, by group and place in it: gradients cut as the parameters are, padding zero."""
        def padded(part, param):
            missing = param.ds_tensor.numel() - part.numel() if self._engine.zero_optimization_partition_weights() else 0
            return torch.nn.functional.pad(part, (0, missing))

        groups = zip(self.averaged_gradients.items(), self.bit16_groups)
        return {g: {i: padded(part, param) for i, (part, param) in enumerate(zip(parts, params))}
                for (g, parts), params in groups}

    @property
    def bit16_groups(self):
        params = dict(self._engine.module.named_parameters())
        return [[params[name] for name in names] for names in self._engine.group_names]

    fp16_groups = bit16_groups
    nccl_start_alignment_factor = 2  # elements; slots are aligned to 64 bytes at least

    @property
    def parallel_partitioned_bit16_groups(self):
        """Copies of the parameters, for each group one piece per rank."""
        ranks = self._engine.seq_dp_world_size
        return [[flat_states.part_of(flat, 2, rank, ranks) for rank in range(ranks)] for flat in self.bit16_groups_flat]

    @property
    def accumulated_grads_in_cpu(self):
        """Gradients that wait in host memory for a later backward: sums are kept sharded, never here."""
        return {}

    @property
    def grad_partitions_flat_buffer(self):
        """Between backward and step: this rank's part of all gradients, one flat copy."""
        parts = [part.flatten() for parts in self.averaged_gradients.values() for part in parts]
        return torch.cat(parts) if parts else torch.empty(0)

    @property
    def bit16_groups_flat(self):
        """Copies of the parameters, one flat tensor per group; at stage 3 this rank's parts."""
        return [torch.cat([p.detach().flatten() if p.numel() else p.ds_tensor for p in group])
                for group in self.bit16_groups]

    def empty_partition_cache(self):
        self._engine.core.give_back()

    def destroy(self):
        pass

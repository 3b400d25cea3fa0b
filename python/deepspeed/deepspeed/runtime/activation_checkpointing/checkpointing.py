"""deepspeed.checkpointing: recomputation over torch.utils.checkpoint, with the state of every generator replayed."""

import contextlib
import time

import torch
import torch.utils.checkpoint as torch_checkpoint

from deepspeed.accelerator import get_accelerator
from deepspeed.utils.logging import log_dist

_MODEL_PARALLEL_RNG = "model-parallel-rng"
_settings = {}


class CudaRNGStatesTracker:
    """Named generator states: fork() runs with one of them and gives the outer one back."""

    def __init__(self):
        self.states_, self.seeds_ = {}, set()

    def reset(self):
        self.states_, self.seeds_ = {}, set()

    def get_states(self):
        return dict(self.states_)

    def set_states(self, states):
        self.states_ = states

    def add(self, name, seed):
        if seed in self.seeds_:
            raise Exception(f"seed {seed} already exists")
        if name in self.states_:
            raise Exception(f"cuda rng state {name} already exists")
        self.seeds_.add(seed)
        before = get_accelerator().get_rng_state()
        get_accelerator().manual_seed(seed)
        self.states_[name] = get_accelerator().get_rng_state()
        get_accelerator().set_rng_state(before)

    @contextlib.contextmanager
    def fork(self, name=_MODEL_PARALLEL_RNG):
        if name not in self.states_:
            raise Exception(f"cuda rng state {name} is not added")
        before = get_accelerator().get_rng_state()
        get_accelerator().set_rng_state(self.states_[name])
        try:
            yield
        finally:
            self.states_[name] = get_accelerator().get_rng_state()
            get_accelerator().set_rng_state(before)


_tracker = CudaRNGStatesTracker()


def get_cuda_rng_tracker():
    return _tracker


def model_parallel_cuda_manual_seed(seed):
    _tracker.reset()
    get_accelerator().manual_seed(seed)
    _tracker.add(_MODEL_PARALLEL_RNG, seed + 2718)


model_parallel_reconfigure_tp_seed = model_parallel_cuda_manual_seed


def checkpoint(function, *args, **kwargs):
    """function(*args, **kwargs) whose activations are computed again in backward."""
    with _boundary():
        if _settings.get("checkpoint_in_cpu"):
            return _checkpoint_on_host(function, args, kwargs)
        # Only the other kind of torch's carries gradients through keywords.
        return torch_checkpoint.checkpoint(function, *args, use_reentrant=not kwargs, **kwargs)


def non_reentrant_checkpoint(function, *args, **kwargs):
    with _boundary():
        return torch_checkpoint.checkpoint(function, *args, use_reentrant=False, **kwargs)


def _checkpoint_on_host(function, args, kwargs):
    """What is kept for backward, the inputs, waits in host memory."""
    names = list(kwargs)

    def run(*values):
        split = len(values) - len(names)
        return function(*values[:split], **dict(zip(names, values[split:])))

    with torch.autograd.graph.save_on_cpu(pin_memory=torch.cuda.is_available()):
        return torch_checkpoint.checkpoint(run, *args, *kwargs.values(), use_reentrant=True)


@contextlib.contextmanager
def _boundary():
    """Around a checkpointed forward: waits for the device and tells the time, where that is asked for."""
    profile = _settings.get("profile")
    wait = get_accelerator().synchronize if profile or _settings.get("synchronize") else None
    if wait is None:
        yield
        return
    wait()
    start = time.perf_counter()
    yield
    wait()
    if profile:
        log_dist(f"checkpointed forward: {1000 * (time.perf_counter() - start):.3f} ms", ranks=[0])


class CheckpointFunction:
    """The older way to call it."""

    @staticmethod
    def apply(function, outputs, *args):
        result = checkpoint(function, *args)
        outputs.extend([result] if torch.is_tensor(result) else list(result))


def configure(mpu_, deepspeed_config=None, partition_activations=None, contiguous_checkpointing=None,
              num_checkpoints=None, checkpoint_in_cpu=None, synchronize=None, profile=None):
    """Arguments stand before the section activation_checkpointing. docs/config.md says what has an effect here."""
    from deepspeed.runtime.config import view_of
    view = None if deepspeed_config is None else view_of(deepspeed_config)
    _settings.clear()
    _settings.update(mpu=mpu_, num_checkpoints=num_checkpoints)
    for name, key, value in (("checkpoint_in_cpu", "cpu_checkpointing", checkpoint_in_cpu),
                             ("synchronize", "synchronize_checkpoint_boundary", synchronize),
                             ("profile", "profile", profile)):
        if value is None and view is not None:
            value = view.value(f"activation_checkpointing.{key}")
        _settings[name] = bool(value)


def configure_from(config):
    """What an engine's configuration says, unless the program has called configure() itself."""
    if config.view.has_section("activation_checkpointing") and _settings.get("by_engine", True):
        configure(config.mpu, config)
        _settings["by_engine"] = True


def is_configured():
    return bool(_settings) and "by_engine" not in _settings


def reset():
    """Between steps: nothing is kept here."""


def set_num_layers(nlayers):
    _settings["num_layers"] = nlayers


def partition_activations_in_checkpoint(partition_activation):
    _settings["partition_activations"] = partition_activation


def detach_variable(inputs, device=None):
    if not isinstance(inputs, tuple):
        raise RuntimeError(f"pass the inputs as a tuple, not as a {type(inputs).__name__}")
    found = []
    for value in inputs:
        if torch.is_tensor(value):
            copy = (value if device is None else value.to(device)).detach()
            copy.requires_grad = value.requires_grad
            value = copy
        found.append(value)
    return tuple(found)

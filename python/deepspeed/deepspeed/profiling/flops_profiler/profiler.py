"""FlopsProfiler and get_model_profile(), over capstan.profiler."""

import torch

from capstan import _C
from capstan.profiler import Profile, write_report
from deepspeed.utils.logging import logger

__all__ = ["FlopsProfiler", "get_model_profile", "get_module_duration", "get_module_flops", "get_module_macs",
           "number_to_string", "macs_to_string", "flops_to_string", "params_to_string", "duration_to_string",
           "num_to_string", "bytes_to_string"]

DEFAULT_PRECISION = 2
_UNITS = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("K", 1e3), ("", 1), ("m", 1e-3), ("u", 1e-6))
_OF_MODULES = ("__flops__", "__macs__", "__params__", "__expert_params__", "__model_expert_params__", "__duration__")


def number_to_string(num, units=None, precision=DEFAULT_PRECISION):
    """1234 is "1.23 K"; `units`: of T, G, M, K, "", m and u, the one that fits unless it is named."""
    if units is None:
        units = next((unit for unit, size in _UNITS if num >= size), "u" if num else "")
    return f"{round(num / dict(_UNITS)[units], precision):g} {units}"


num_to_string = number_to_string


def macs_to_string(macs, units=None, precision=DEFAULT_PRECISION):
    return f"{number_to_string(macs, units, precision)}MACs"


def flops_to_string(flops, units=None, precision=DEFAULT_PRECISION):
    return f"{number_to_string(flops, units, precision)}FLOPS"


def bytes_to_string(b, units=None, precision=DEFAULT_PRECISION):
    return f"{number_to_string(b, units, precision)}B"


def params_to_string(params_num, units=None, precision=DEFAULT_PRECISION):
    """Billions instead of giga."""
    units = units.replace("B", "G") if units else units
    return number_to_string(params_num, units, precision).replace("G", "B")


def duration_to_string(duration, units=None, precision=DEFAULT_PRECISION):
    return f"{number_to_string(duration, units, precision)}s"


def _sum_below(module, attribute):
    return sum(getattr(each, attribute, 0) for each in module.modules())


def get_module_flops(module):
    """Of its forward, with the modules inside: between stop_profile() and end_profile()."""
    return _sum_below(module, "__flops__")


def get_module_macs(module):
    return _sum_below(module, "__macs__")


def get_module_duration(module):
    return _sum_below(module, "__duration__")


class FlopsProfiler:
    """Measures a model between start_profile() and stop_profile(); with an engine, the step that its configuration names.
    Totals are of forward, as DeepSpeed's are; the report and `profile` have backward and recomputation beside it."""

    def __init__(self, model, ds_engine=None, recompute_fwd_factor=0.0):
        self.model, self.ds_engine, self.recompute_fwd_factor = model, ds_engine, recompute_fwd_factor
        self.profile = Profile(model)
        self.flops = self.macs = self.params = 0

    @property
    def started(self):
        return self.profile.running

    def start_profile(self, ignore_list=None):
        """`ignore_list`: classes of modules that count as part of their parents."""
        self.profile.start(ignore_list or ())

    def stop_profile(self):
        """Counting ends; what was counted can be read."""
        self.profile.stop()
        self._note()

    def reset_profile(self):
        self.profile.stop()
        self.profile.reset()
        self._note()

    def end_profile(self):
        """Takes everything away from the modules."""
        self.profile.stop()
        for module in self.model.modules():
            for name in _OF_MODULES:
                module.__dict__.pop(name, None)

    def _take(self, profile):
        """The figures of a profile that somebody else made."""
        self.profile, root = profile, profile.root
        self.flops, self.macs, self.params = root.flops(), root.macs(), root.parameters
        return self

    def _note(self):
        root = self._take(self.profile).profile.root
        for module in self.model.modules():
            for name in _OF_MODULES:
                module.__dict__[name] = 0
        for node, _ in root.walk():
            own = node.module.__dict__
            own["__flops__"] += node.own_flops["forward"]
            own["__macs__"] += node.own_macs()
            own["__duration__"] += node.own_seconds["forward"]
            own["__params__"] = node.parameters

    def get_total_flops(self, as_string=False):
        return number_to_string(self.flops) if as_string else self.flops

    def get_total_macs(self, as_string=False):
        return macs_to_string(self.macs) if as_string else self.macs

    def get_total_duration(self, as_string=False):
        seconds = self.profile.root.seconds()
        return duration_to_string(seconds) if as_string else seconds

    def get_total_params(self, as_string=False):
        return params_to_string(self.params) if as_string else self.params

    def is_expert_tensor_parallelism_enabled(self):
        return False

    def print_model_profile(self, profile_step=1, module_depth=-1, top_modules=1, detailed=True, output_file=None):
        """The summary, the classes of modules that need most, and a line per module; to a file or the screen."""
        facts = _C.CostFacts()
        facts.step, facts.recompute_factor = profile_step, self.recompute_fwd_factor
        engine = self.ds_engine
        if engine is not None:
            facts.world_size, facts.data_ranks, facts.model_ranks = (engine.world_size, engine.dp_world_size,
                                                                     engine.mp_world_size)
            facts.micro_batch = engine.train_micro_batch_size_per_gpu()
        write_report(self.profile.report(facts, module_depth, top_modules, detailed), output_file, logger.warning)

    def print_model_aggregated_profile(self, module_depth=-1, top_modules=1):
        """The classes of modules with the most parameters, MACs and time, at each depth."""
        print(_C.top_modules(self.profile.rows(), module_depth, top_modules), end="", flush=True)


def _inputs(model, shape):
    parameter = next(model.parameters())
    assert type(shape) is tuple and len(shape) >= 1, "input_shape must be a tuple with at least one size"
    return [torch.ones(()).new_empty(shape, dtype=parameter.dtype, device=parameter.device)]


def get_model_profile(model, input_shape=None, args=(), kwargs=None, print_profile=True, detailed=True, module_depth=-1,
                      top_modules=1, warm_up=1, as_string=True, output_file=None, ignore_modules=None, mode="forward"):
    """(flops, macs, params) of one forward: as text, or as numbers. `input_shape`, or `args` and `kwargs`: what the model is
    called with. mode="generate" calls model.generate()."""
    assert isinstance(model, torch.nn.Module), "model must be a PyTorch module"
    assert mode in ("forward", "generate"), f'mode must be "forward" or "generate", not "{mode}"'
    args, kwargs = list(args), dict(kwargs or {})
    if input_shape is not None:
        args = _inputs(model, input_shape)
    assert args or kwargs, "args and/or kwargs must be specified if input_shape is None"
    call, training, profiler = model if mode == "forward" else model.generate, model.training, FlopsProfiler(model)
    model.eval()
    try:
        for _ in range(warm_up):
            call(*args, **kwargs)
        profiler.start_profile(ignore_modules)
        try:
            call(*args, **kwargs)
        finally:
            profiler.stop_profile()
        if print_profile:
            profiler.print_model_profile(warm_up, module_depth, top_modules, detailed, output_file)
    finally:
        profiler.end_profile()
        model.train(training)
    if as_string:
        return profiler.get_total_flops(True), profiler.get_total_macs(True), profiler.get_total_params(True)
    return profiler.flops, profiler.macs, profiler.params

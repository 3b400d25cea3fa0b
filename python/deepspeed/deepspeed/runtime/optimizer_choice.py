"""From the configuration and the client's arguments to the optimizer, its wrapper and its schedule."""

import inspect

import torch

from capstan import _C
from capstan.optimizers import KernelOptimizer
from deepspeed.runtime import config as names
from deepspeed.runtime.config import DeepSpeedConfigError
from deepspeed.runtime.zero.utils import ZeRORuntimeException, is_zero_supported_optimizer
from deepspeed.utils.logging import logger


def _make(kind, model_parameters, params):
    """Of all parameters those that the class takes: what it does not take has its neutral value, or was refused."""
    takes = inspect.signature(kind).parameters
    chosen = {name: value for name, value in params.items() if name in takes and value is not None}
    if "betas" in chosen:
        chosen["betas"] = tuple(chosen["betas"])
    return kind(model_parameters, **chosen)


def named_optimizer(view, model_parameters, offloaded):
    """The optimizer that a configuration names, with the parameters that it has after defaults."""
    from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
    from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
    from deepspeed.ops.lamb import FusedLamb
    from deepspeed.ops.lion import DeepSpeedCPULion, FusedLion
    name, params = view.value("optimizer.type"), view.section("optimizer.params")
    adam = None
    if name in ("Adam", "AdamW"):
        decoupled = view.optimizer_kind == "adamw"
        params.update(adamw_mode=decoupled, adam_w_mode=decoupled)  # the two classes spell it differently
        torchs = torch.optim.AdamW if decoupled else torch.optim.Adam
        adam = (torchs, torchs) if params["torch_adam"] else (FusedAdam, DeepSpeedCPUAdam)
    kinds = {"Adam": adam, "AdamW": adam, "Adagrad": (torch.optim.Adagrad, DeepSpeedCPUAdagrad),
             "Lamb": (FusedLamb, FusedLamb), "Lion": (FusedLion, DeepSpeedCPULion)}
    device, host = kinds.get(name) or (getattr(torch.optim, name),) * 2
    return _make(host if offloaded else device, model_parameters, params)


def own_groups(engine, model_parameters):
    """The parameters, in groups where capstan.parameter_groups makes some."""
    view, path = engine._config.view, "capstan.parameter_groups"
    groups = [view.section(f"{path}.{name}") for name in view.names_below(path)]
    if not groups:
        return model_parameters
    if any(isinstance(p, dict) for p in model_parameters):
        raise DeepSpeedConfigError("both model_parameters and the configuration define parameter groups", path,
                                   "remove one of the two")
    names = {id(p): name for name, p in engine.module.named_parameters()}
    made = [{"params": []} for _ in range(len(groups) + 1)]  # the last: what no pattern matches
    for group, values in zip(made, groups):
        group.update({key: values[key] for key in ("lr", "weight_decay") if values[key] is not None})
    places = _C.groups_of([values["parameters"] for values in groups], [names.get(id(p), "") for p in model_parameters])
    for param, place in zip(model_parameters, places):
        made[place]["params"].append(param)
    return made


def choose_optimizer(engine, client, model_parameters):
    """The base optimizer, or None: a client's object, then a client's function, then the configuration's."""
    offloaded = engine.zero_cpu_offload()
    if client is not None and engine._config.view.names_below("capstan.parameter_groups"):
        raise DeepSpeedConfigError("the configuration's groups cannot change an optimizer object",
                                   "capstan.parameter_groups",
                                   "define the groups when you create that optimizer, or name the optimizer in the configuration")
    if isinstance(client, torch.optim.Optimizer) or hasattr(client, "param_groups"):
        optimizer = client
        if offloaded and engine.zero_force_ds_cpu_optimizer() and not isinstance(optimizer, KernelOptimizer):
            raise ZeRORuntimeException(
                f"{type(optimizer).__name__} would update the offloaded states with torch's operations, far slower than "
                "deepspeed.ops.adam.DeepSpeedCPUAdam or an optimizer that the configuration names: use one of those, or set "
                "zero_force_ds_cpu_optimizer to false to use it anyway")
        if offloaded and engine.bf16_optimizer_states():
            assert not getattr(optimizer, "fp32_optimizer_states", False), (
                "bf16_optimizer_states with an offloaded optimizer needs DeepSpeedCPUAdam(..., "
                "fp32_optimizer_states=False): this one keeps its moments in fp32")
    elif callable(client):
        optimizer = client(model_parameters)
    elif engine.optimizer_name() is not None:
        optimizer = named_optimizer(engine._config.view, own_groups(engine, model_parameters), offloaded)
    else:
        return None
    _check_groups(optimizer)
    ours = client is None and engine.optimizer_name() in (*names.DEEPSPEED_OPTIMIZERS, "SGD")
    if engine.zero_optimization() and not ours and not is_zero_supported_optimizer(optimizer):
        assert engine.zero_allow_untested_optimizer(), (
            f"whether {type(optimizer).__name__} gives the same numbers on shards is unknown: set zero_allow_untested_optimizer "
            "to true if it treats every element alike")
    return optimizer


def _check_groups(optimizer):
    optimizer.param_groups[:] = [group for group in optimizer.param_groups if len(group["params"]) > 0]
    seen, repeated = set(), []
    for group in optimizer.param_groups:
        for param in group["params"]:
            (repeated.append if id(param) in seen else seen.add)(id(param))
    assert not repeated, f"{len(repeated)} parameters appear more than once in the optimizer's groups"


def wrap_optimizer(engine, optimizer):
    """engine.optimizer as DeepSpeed's users know it."""
    from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
    from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer
    from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer
    from deepspeed.runtime.zero.parameter_offload import DeepSpeedZeRoOffload
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
    if engine.zero_optimization_partition_weights():
        return DeepSpeedZeRoOffload(engine) if optimizer is None else DeepSpeedZeroOptimizer_Stage3(engine, optimizer)
    if optimizer is None:
        return None
    model_dtype, grad_dtype = engine.get_data_types()
    if engine.zero_optimization():
        plain = not engine.zero_optimization_partition_gradients() and model_dtype == torch.bfloat16 and grad_dtype == torch.float32
        return (BF16_Optimizer if plain and not engine.zero_cpu_offload() else DeepSpeedZeroOptimizer)(engine, optimizer)
    if model_dtype != grad_dtype:
        raise NotImplementedError(f"stage 0 trains {model_dtype} parameters with gradients of the same dtype, not "
                                  f"{grad_dtype}: remove data_types.grad_accum_dtype, or use a ZeRO stage")
    if model_dtype == torch.float32:
        return optimizer
    return (FP16_Optimizer if isinstance(optimizer, KernelOptimizer) else FP16_UnfusedOptimizer)(engine, optimizer)


def check_schedule(schedule, optimizer):
    """A schedule object moves the groups of the optimizer that it was made on."""
    from deepspeed.runtime.lr_schedules import SCHEDULES
    if not isinstance(schedule, (torch.optim.lr_scheduler.LRScheduler, *SCHEDULES.values())):
        return
    assert isinstance(optimizer, torch.optim.Optimizer), (
        "a schedule object needs the optimizer object it belongs to; if the optimizer is created later, pass a function that "
        "creates the schedule")
    if getattr(schedule.optimizer, "param_groups", None) is not optimizer.param_groups:
        logger.warning("the learning-rate schedule belongs to another optimizer than the one passed to initialize(), so it will "
                       "not change the learning rates")


def choose_scheduler(engine, client, base_optimizer):
    """The client's schedule, made where it is a function; else the configuration's; else None."""
    from deepspeed.runtime import lr_schedules
    if client is not None:
        if not isinstance(client, torch.optim.lr_scheduler.LRScheduler) and not hasattr(client, "step"):
            return client(base_optimizer)
        return client
    view, name = engine._config.view, engine.scheduler_name()
    if name is None or base_optimizer is None:  # a model that is only evaluated
        return None
    kind = lr_schedules.SCHEDULES.get(name) or getattr(torch.optim.lr_scheduler, name)
    params = view.section("scheduler.params")
    return kind(base_optimizer, **{key: value for key, value in params.items() if value is not None})

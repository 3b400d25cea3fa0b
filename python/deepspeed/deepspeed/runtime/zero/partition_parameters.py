"""zero.Init and GatheredParameters."""

import os

import torch
import torch.distributed as dist

import capstan
from capstan import _C, sharded_init
from capstan.params import ParamStatus as ZeroParamStatus  # noqa: F401
from capstan.errors import ConfigError
from capstan.params import EngineParam, ShardedParameter, handle_of
from deepspeed.later import names_of, refuse
from deepspeed.runtime.zero.linear import zero3_linear_wrap  # noqa: F401

globals().update(names_of(__name__))
_orig_torch_empty = torch.empty
partitioned_param_data_shape = [0]  # of a sharded parameter between its uses


class MultipleAllGatherHandles:
    """Several pending gathers as one."""

    def __init__(self, handles):
        self.handles = handles

    def wait(self, handle_dependency=True):
        for handle in self.handles:
            handle.wait(handle_dependency=handle_dependency)


class ZeroParamType:
    NORMAL, PARTITIONED, REMOTE = 1, 2, 3


def is_zero_param(parameter):
    return isinstance(parameter, torch.Tensor) and handle_of(parameter) is not None and hasattr(parameter, "ds_id")


def _contradicting_single_rank_pg_error(dp_world_size, explicit_process_group=None, env=os.environ):
    """What Init raises when it would shard over one rank of many; None where all is well."""
    try:
        launched = int(env.get("WORLD_SIZE") or 1)
    except ValueError:
        launched = 1
    if explicit_process_group is not None or dp_world_size > 1 or launched <= 1:
        return None
    return (f"zero.Init would shard over a group of 1 rank although the launcher set WORLD_SIZE={launched}: call "
            "deepspeed.init_distributed() before it, or give data_parallel_group")


def _view_of(config):
    """The configuration as capstan reads it; None where none was given."""
    from deepspeed.runtime.config import view_of
    return None if config is None else view_of(config)


def _check_home(view, remote_device, pin_memory):
    """Where shards live is the configuration's to say, for the engine moves them there: an argument may only repeat it."""
    section = {"device": "none"} if view is None else view.section("zero_optimization.offload_param")
    if remote_device not in (None, "none", section["device"]):
        raise ConfigError(f"remote_device is {remote_device!r}, but the configuration has offload_param.device "
                          f"{section['device']!r}", "zero.Init",
                          "set zero_optimization.offload_param.device in the configuration, and remove remote_device")
    if pin_memory and (section["device"] == "none" or not section["pin_memory"]):
        raise ConfigError("pin_memory is for parameters that the configuration offloads, with its own pin_memory",
                          "zero.Init", "set device and pin_memory in zero_optimization.offload_param, and remove pin_memory here")


class Init(sharded_init.ShardedInit):
    """Shards the parameters of modules as they are built; they take `dtype` when the context ends."""

    title = "zero.Init"

    def __init__(self, module=None, data_parallel_group=None, mem_efficient_linear=True, remote_device=None,
                 pin_memory=False, config_dict_or_path=None, config=None, enabled=True, dtype=None, mpu=None,
                 zero_param_parallel_group=None, zero_quantized_weights=False,
                 zero_quantized_nontrainable_weights=False, sequence_data_parallel_group=None, param_swapper=None,
                 tensor_overrides=()):
        self.enabled = enabled
        if not enabled:
            super().__init__(None, None, enabled=False)
            return
        from deepspeed.comm import init_distributed
        init_distributed(dist_init_required=None)
        view = _view_of(config_dict_or_path if config_dict_or_path is not None else config)
        if data_parallel_group is None:
            data_parallel_group = sequence_data_parallel_group
        if data_parallel_group is None and hasattr(mpu, "get_data_parallel_group"):
            data_parallel_group = mpu.get_data_parallel_group()
        error = _contradicting_single_rank_pg_error(dist.get_world_size(data_parallel_group), data_parallel_group)
        if error is not None:
            raise RuntimeError(error)
        if dtype is None:
            dtype = view.param_dtype if view is not None else None
        _check_home(view, remote_device, pin_memory)
        for name, value in (("zero_quantized_weights", zero_quantized_weights),
                            ("zero_quantized_nontrainable_weights", zero_quantized_nontrainable_weights),
                            ("zero_param_parallel_group", zero_param_parallel_group), ("param_swapper", param_swapper)):
            if value:
                refuse("zero.Init({})", name)
        self.ds_process_group = data_parallel_group
        super().__init__(data_parallel_group, None if module is not None else dtype)
        if module is not None:
            self.shard_module(module)


class GatheredParameters:
    """Holds parameters whole. Ordinary parameters and None are passed over."""

    def __init__(self, params, modifier_rank=None, fwd_module=None, enabled=True):
        self.enabled = enabled
        if not enabled:
            return
        from capstan.params import flat_list
        self.params = [p for p in flat_list(params) if handle_of(p) is not None]
        if fwd_module is not None:
            for param in self.params:
                register_external_parameter(fwd_module, param)
        self.src_rank = modifier_rank
        self._context = capstan.gathered(self.params, modifier_rank)

    def __enter__(self):
        if self.enabled and self.params:
            self._context.__enter__()

    def __exit__(self, *error):
        if self.enabled and self.params:
            return self._context.__exit__(*error)
        return None


def _gather_external(module, args):
    for parameter in module._external_params.values():
        handle = handle_of(parameter)
        if isinstance(handle, EngineParam) and handle.core is not None:
            handle.core.borrow(handle.index)


def register_external_parameter(module, parameter):
    """`parameter` of another module is gathered for the forward and backward of `module`.

    A parameter that is read through a module (`self.embed.weight`) is gathered without this; it is for those that code
    keeps elsewhere, in a list or a closure.
    """
    if not isinstance(parameter, torch.nn.Parameter):
        raise RuntimeError(f"expected a torch.nn.Parameter, got a {type(parameter).__name__}")
    if not hasattr(module, "_external_params"):
        module._external_params = {}
        module.register_forward_pre_hook(_gather_external)
    module._external_params[getattr(parameter, "ds_id", id(parameter))] = parameter


def unregister_external_parameter(module, parameter):
    if not isinstance(parameter, torch.nn.Parameter):
        raise RuntimeError(f"expected a torch.nn.Parameter, got a {type(parameter).__name__}")
    key = getattr(parameter, "ds_id", id(parameter))
    if key not in getattr(module, "_external_params", {}):
        raise RuntimeError(f"the parameter was not registered with this {type(module).__name__}")
    del module._external_params[key]


def get_allgather_dtype(param, tensor):
    """What the configuration wants of it on the wire; gathers move parameters as they are."""
    return getattr(param, "comm_dtype", tensor.dtype)


def shutdown_init_context():
    sharded_init.suspend()


def restore_init_context():
    sharded_init.resume()


class InsertPostInitMethodToModuleSubClasses(Init):
    pass


class MiCS_Init(Init):
    """As Init: until an engine cuts them as mics_shard_size says, parameters are cut over all ranks."""


def _param_methods():
    """Methods that DeepSpeed puts on a sharded parameter."""

    def all_gather(self, param_list=None, async_op=False, **unused):
        for param in param_list or [self]:
            handle_of(param).pin()

    def all_gather_coalesced(self, params, *unused, **more):
        """Whole until partition(); the gather is over when this returns, as its handle's wait() finds."""
        all_gather(self, list(params))
        return MultipleAllGatherHandles([])

    def partition(self, param_list=None, has_been_updated=False, **unused):
        for param in param_list or [self]:
            if has_been_updated:
                handle_of(param).take_from(0)
            handle_of(param).unpin()

    def convert_to_zero_parameters(self, param_list):
        """Shards parameters that were made later, such as adapters, like this one; before initialize()."""
        handle = handle_of(self)
        if isinstance(handle, EngineParam):
            raise ConfigError("the model already has an engine, which does not know new parameters", "param_list",
                              "add them before initialize()")
        for param in param_list:
            sharded_init.shard_beside(param, handle)

    def partition_numel(self):
        return sum(elems for _, _, elems in _C.flat_part([self.ds_numel], 3, 0, dist.get_world_size()))

    def ds_summary(self, **unused):
        return {"id": self.ds_id, "status": self.ds_status.name, "numel": self.numel(), "ds_numel": self.ds_numel,
                "shape": tuple(self.shape), "ds_shape": tuple(self.ds_shape), "requires_grad": self.requires_grad}

    for function in (all_gather, all_gather_coalesced, partition, convert_to_zero_parameters, partition_numel,
                     ds_summary):
        setattr(ShardedParameter, function.__name__, function)
    ShardedParameter.aligned_size = lambda self: self.partition_numel() * dist.get_world_size()
    ShardedParameter.padding_size = lambda self: self.aligned_size() - self.ds_numel
    ShardedParameter.ds_process_group = property(lambda self: dist.group.WORLD)
    ShardedParameter.ds_active_sub_modules = property(lambda self: set())
    ShardedParameter.is_external_param = False
    ShardedParameter.ds_secondary_tensor = None  # of hierarchical partitioning, which there is none of


_param_methods()

"""Tensor parallelism: models that DeepSpeed splits, and those that Megatron's layers split by themselves."""

import torch.distributed as dist

from capstan import tensor_parallel
from capstan.errors import ConfigError
from capstan.tensor_layers import Ranks, Slice, mark, slice_of
from deepspeed.comm.comm import init_distributed

_WHERE = "initialize(mpu=...)"
_AXES = ("slice_parallel", "tensor_model_parallel", "model_parallel")  # what an mpu may call it, the clearest first
_PIPES = ("get_pipe_parallel_world_size", "get_pipeline_model_parallel_world_size")


def tp_model_init(model, tp_size, dtype, config=None, **kwargs):
    """Splits a model between `tp_size` neighbouring ranks, in `dtype`, before initialize() does. Collective."""
    if config is not None or kwargs:
        raise ConfigError(f"tp_model_init() takes no {', '.join(['config'] * (config is not None) + sorted(kwargs))} here",
                          "tp_model_init()", "say how layers are split in tensor_parallel of the configuration of initialize()")
    init_distributed()
    return tensor_parallel.split(model, tp_size).to(dtype)


def _asks(mpu, what):
    """Its answer about the ranks that split a model; None: it has no such axis."""
    for axis in _AXES:
        if hasattr(mpu, f"get_{axis}_{what}"):
            return getattr(mpu, f"get_{axis}_{what}")()
    return None


def size_of(mpu):
    """How many ranks split a model, as an mpu says."""
    if mpu is None or hasattr(mpu, "get_sequence_parallel_world_size"):  # there, the names mean those that share sequences
        return 1
    return _asks(mpu, "world_size") or 1


def overrides(mpu, model, document):
    """What objects of the caller's say of a configuration: path -> (value, why)."""
    size = size_of(mpu)
    if size == 1:
        return tensor_parallel.overrides(model, document)
    stages = next((getattr(mpu, name)() for name in _PIPES if hasattr(mpu, name)), 1)
    if stages > 1:
        raise ConfigError(f"the mpu has a pipeline of {stages} stages, which only PipelineModule has here", _WHERE,
                          "use a PipelineModule, or one stage")
    return tensor_parallel.size_given(size, "the mpu says so", document)


def adopt(model, mpu):
    """A model whose layers were made of parts: each parameter that says so is one of a larger tensor. Collective."""
    if tensor_parallel.ranks_of(model) is not None:
        return
    ranks = Ranks(_asks(mpu, "group"), ours=False)
    _check_places(ranks, mpu)
    for name, param in model.named_parameters():
        if slice_of(param) is None and (getattr(param, "tensor_model_parallel", False) or getattr(param, "model_parallel", False)):
            mark(param, _slice(name, param, ranks))
    tensor_parallel.take_ranks(model, ranks)


def _slice(name, param, ranks):
    dim, stride = getattr(param, "partition_dim", -1), getattr(param, "partition_stride", 1)
    if dim < 0 or stride != 1:
        raise ConfigError(f"parameter '{name}' is a part of a larger one, of dimension {dim} in strides of {stride}", _WHERE,
                          "set its partition_dim, and make one parameter of each matrix that it holds (partition_stride 1)")
    shape = list(getattr(param, "ds_shape", param.shape))
    length = shape[dim]
    shape[dim] = length * ranks.size
    return Slice(name.rpartition(".")[2], tuple(shape), dim, 0, length, ranks)


def _check_places(ranks, mpu):
    """Raises ConfigError on all ranks unless neighbours split models, and data-parallel ranks are as far apart."""
    rank, world, size = dist.get_rank(), dist.get_world_size(), ranks.size
    wanted = [list(range(rank - rank % size, rank - rank % size + size)), list(range(rank % size, world, size))]
    found = [dist.get_process_group_ranks(group) for group in (ranks.group, mpu.get_data_parallel_group())]
    everybodys = [None] * world
    dist.all_gather_object(everybodys, found == wanted and world % size == 0)
    if not all(everybodys):
        other = everybodys.index(False)
        raise ConfigError(f"the mpu's groups of rank {other} are not those of a mesh of {world // size} (data) x {size} (tensor), in "
                          f"which neighbours split a model; those of rank {rank} are {found[0]} (tensor) and {found[1]} (data)", _WHERE,
                          f"let ranks {wanted[0]} split a model and ranks {wanted[1]} see other data")

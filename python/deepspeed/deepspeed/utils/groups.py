"""Groups of ranks by what they share: data, sequences, or layers. Each other group is this rank alone."""

import torch.distributed as dist

from capstan import sequence_parallel, tensor_parallel
from capstan._C import Axis, Mesh

mpu = None  # that of the last engine
_sequence_size = _tensor_size = 1

_EXPERT_PARALLEL_GROUP, _EXPERT_DATA_PARALLEL_GROUP = {}, {}


def _create_expert_and_data_parallel(expert_parallel_size_, use_data_before_expert_parallel_=False):
    """Makes the groups of ranks that share experts, and those that hold the same ones. Collective."""
    name = f"ep_size_{expert_parallel_size_}"
    if name in _EXPERT_PARALLEL_GROUP:
        return
    experts, copies = _get_expert_parallel_ranks(dist.get_world_size(), 1, expert_parallel_size_, 1,
                                                 use_data_before_expert_parallel_)
    for table, groups in ((_EXPERT_PARALLEL_GROUP, experts), (_EXPERT_DATA_PARALLEL_GROUP, copies)):
        for ranks in groups:
            made = dist.new_group(ranks)
            if dist.get_rank() in ranks:
                table[name] = made


def _get_expert_parallel_group(group_name):
    return _EXPERT_PARALLEL_GROUP[group_name]


def _get_expert_data_parallel_group(group_name):
    return _EXPERT_DATA_PARALLEL_GROUP[group_name]


def training_group(unit):
    """All ranks that train with this one, as far as an mpu says."""
    from deepspeed.runtime.tensor_parallel import size_of
    if size_of(unit) > 1:
        return dist.group.WORLD
    for name in ("get_sequence_data_parallel_group", "get_data_parallel_group"):
        given = getattr(unit, name, lambda: None)()
        if given is not None:
            return given
    return dist.group.WORLD


def peers(among, tensor_size):
    """Of a group that splits models between so many neighbours, the ranks with the same parts as this one."""
    return tensor_parallel.data_group_of(tensor_size, among) if tensor_size > 1 else among


def sequence_group(among, size):
    """The `size` ranks of a group that share sequences with this one; None where nobody shares any."""
    return sequence_parallel.group_of(size, among) if size > 1 else None


def data_group(among, size):
    """The ranks of a group that have other sequences than this one."""
    return sequence_parallel.data_group_of(size, among) if size > 1 else among


def follow(engine):
    """From here on the functions below speak of this engine's ranks. Collective."""
    global mpu, _sequence_size, _tensor_size
    mpu, _sequence_size, _tensor_size = engine.mpu, engine.sequence_parallel_size, max(1, engine.autotp_size())
    sequence_group(engine.seq_data_parallel_group, _sequence_size)  # made now, by all ranks together
    data_group(engine.seq_data_parallel_group, _sequence_size)


def _get_sequence_data_parallel_group():
    return peers(training_group(mpu), _tensor_size)


def _get_sequence_data_parallel_world_size():
    return dist.get_world_size(_get_sequence_data_parallel_group())


def _get_sequence_data_parallel_rank():
    return dist.get_rank(_get_sequence_data_parallel_group())


def _get_sequence_parallel_world_size():
    return getattr(mpu, "get_sequence_parallel_world_size", lambda: _sequence_size)()


def _get_sequence_parallel_group():
    return sequence_group(_get_sequence_data_parallel_group(), _get_sequence_parallel_world_size())


def _get_sequence_parallel_rank():
    group = _get_sequence_parallel_group()
    return 0 if group is None else dist.get_rank(group)


def _get_data_parallel_group():
    return data_group(_get_sequence_data_parallel_group(), _get_sequence_parallel_world_size())


def _get_data_parallel_world_size():
    return dist.get_world_size(_get_data_parallel_group())


def _get_data_parallel_rank():
    return dist.get_rank(_get_data_parallel_group())


def get_tensor_model_parallel_group():
    """The ranks with other parts of this one's model; None where nobody splits it."""
    return tensor_parallel.group_of(_tensor_size, training_group(mpu)) if _tensor_size > 1 else None


def get_tensor_model_parallel_world_size():
    return _tensor_size


def get_tensor_model_parallel_rank():
    return 0 if _tensor_size == 1 else dist.get_rank(get_tensor_model_parallel_group())


_get_model_parallel_group = get_model_parallel_group = get_tensor_model_parallel_group
_get_model_parallel_world_size = get_model_parallel_world_size = get_tensor_model_parallel_world_size
_get_model_parallel_rank = get_model_parallel_rank = get_tensor_model_parallel_rank


def _get_expert_model_parallel_world_size():
    return 1


def _ensure_divisibility(numerator, denominator):
    assert numerator % denominator == 0, f"{numerator} is not divisible by {denominator}"


def _get_expert_parallel_ranks(world_size, tensor_parallel_size_, expert_parallel_size_, pipeline_parallel_size_=1,
                               use_data_before_expert_parallel_=False):
    """(groups of ranks that share experts' work, groups that hold the same experts)"""
    _ensure_divisibility(world_size, tensor_parallel_size_ * pipeline_parallel_size_)
    data_parallel = world_size // (tensor_parallel_size_ * pipeline_parallel_size_)
    _ensure_divisibility(data_parallel, expert_parallel_size_)
    sizes = {"pipe": pipeline_parallel_size_, "shard": data_parallel, "tensor": tensor_parallel_size_}
    mesh = Mesh(world_size, expert=expert_parallel_size_, **sizes)
    axes = Axis.expert, Axis.expert_replica
    if use_data_before_expert_parallel_:  # the two change places
        mesh, axes = Mesh(world_size, expert=mesh.size(Axis.expert_replica), **sizes), axes[::-1]

    def place(ranks):  # as DeepSpeed lists them
        return mesh.place(Axis.pipe, ranks[0]), mesh.place(Axis.tensor, ranks[0]), ranks[0]

    return tuple(sorted(mesh.groups([axis]), key=place) for axis in axes)

"""Groups of ranks by what they share. Only data parallelism is there: each other group is this rank alone."""

import torch.distributed as dist

mpu = None


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


def _get_data_parallel_group():
    return dist.group.WORLD


def _get_data_parallel_world_size():
    return dist.get_world_size()


def _get_data_parallel_rank():
    return dist.get_rank()


def _get_model_parallel_world_size():
    return 1


def _get_sequence_parallel_world_size():
    return 1


def _get_sequence_parallel_rank():
    return 0


def _get_sequence_parallel_group():
    return None


def _get_sequence_data_parallel_world_size():
    return dist.get_world_size()


def _get_sequence_data_parallel_rank():
    return dist.get_rank()


def _get_sequence_data_parallel_group():
    return dist.group.WORLD


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
    expert_groups, expert_data_groups = [], []
    per_stage = world_size // pipeline_parallel_size_
    for stage in range(0, world_size, per_stage):
        for first in range(stage, stage + tensor_parallel_size_):
            ranks = list(range(first, stage + per_stage, tensor_parallel_size_))
            copies = data_parallel // expert_parallel_size_
            if use_data_before_expert_parallel_:
                parts = [ranks[i::copies] for i in range(copies)]
            else:
                parts = [ranks[i:i + expert_parallel_size_] for i in range(0, data_parallel, expert_parallel_size_)]
            expert_groups.extend(parts)
            expert_data_groups.extend([list(same) for same in zip(*parts)])
    return expert_groups, expert_data_groups

"""The ranks of sequence parallelism, as an object for initialize(mpu=...): blocks of neighbours share sequences."""

import torch.distributed as dist

from capstan import sequence_parallel

_size = None  # ranks per sequence; None: nobody has said


def initialize_sequence_parallel(sequence_parallel_size):
    """Collective."""
    global _size
    sequence_parallel.group_of(sequence_parallel_size)
    _size = sequence_parallel_size


def get_sequence_parallel_group():
    assert _size is not None, "there is no sequence parallel group: call initialize_sequence_parallel() first"
    return sequence_parallel.group_of(_size)


def get_sequence_parallel_world_size():
    return dist.get_world_size(get_sequence_parallel_group())


def get_sequence_parallel_rank():
    return dist.get_rank(get_sequence_parallel_group())


def get_sequence_data_parallel_group():
    return dist.group.WORLD


def get_sequence_data_parallel_world_size():
    return dist.get_world_size()


def get_sequence_data_parallel_rank():
    return dist.get_rank()


# Callers that know only one axis beside data ask for this one.
get_model_parallel_group = get_sequence_parallel_group
get_model_parallel_world_size = get_sequence_parallel_world_size
get_model_parallel_rank = get_sequence_parallel_rank

"""Errors and small questions of the ZeRO wrappers."""

import torch

from capstan.params import handle_of


class ZeRORuntimeException(Exception):
    pass


def is_zero_param(parameter):
    """Whether a tensor is a parameter that capstan shards or will shard."""
    return torch.is_tensor(parameter) and hasattr(parameter, "ds_id") and handle_of(parameter) is not None


def is_zero_supported_optimizer(optimizer):
    from capstan.optimizers import KernelOptimizer
    known = (torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)
    return isinstance(optimizer, KernelOptimizer) or type(optimizer) in known


def get_lst_from_rank0(lst):
    """Rank 0's list of integers on every rank."""
    import torch.distributed as dist
    tensor = torch.tensor(lst if dist.get_rank() == 0 else [-1] * len(lst), dtype=torch.int64)
    dist.broadcast(tensor, src=0)
    return tensor.tolist()

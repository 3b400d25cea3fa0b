"""Partitions, norms and memory reports that scripts import."""

import gc
import math
from itertools import accumulate

import torch
import torch.distributed as dist

from capstan import _C
from deepspeed.accelerator import get_accelerator
from deepspeed.later import names_of
from deepspeed.utils.logging import logger

globals().update(names_of(__name__))


class DummyOptim:
    """Holds parameter groups where no optimizer is wanted."""

    def __init__(self, params):
        self.param_groups = [{"params": params}]


def ensure_directory_exists(filename):
    import os
    os.makedirs(os.path.dirname(filename), exist_ok=True)


def set_random_seed(seed):
    import random

    import numpy
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def noop_decorator(function):
    return function


def see_memory_usage(message, force=False):
    if not force or (dist.is_initialized() and dist.get_rank() != 0):
        return
    gc.collect()
    accelerator = get_accelerator()
    logger.info(f"{message} | MA {accelerator.memory_allocated() / 2**30:.2f} GB "
                f"Max_MA {accelerator.max_memory_allocated() / 2**30:.2f} GB")


memory_status = see_memory_usage


def empty_cache():
    get_accelerator().empty_cache()


def move_to_device(item, device, criterion_func=lambda value: True):
    """`item` with the tensors in its tuples, lists and dicts moved to a device."""
    if isinstance(item, torch.Tensor):
        return item.to(device) if criterion_func(item) else item
    if isinstance(item, (list, tuple)):
        return type(item)(move_to_device(value, device, criterion_func) for value in item)
    if isinstance(item, dict):
        return {key: move_to_device(value, device, criterion_func) for key, value in item.items()}
    return item


def prefix_sum_inc(weights):
    """Sums of the first 1, 2, ... weights."""
    return list(accumulate(weights))


def partition_uniform(num_items, num_parts):
    """Boundaries of parts whose sizes differ by at most one, the larger ones first."""
    return _C.even_cuts(num_items, num_parts)


def partition_balanced(weights, num_parts):
    """Boundaries of contiguous parts whose heaviest is as light, and then whose lightest is as heavy as can be."""
    return _C.balanced_cuts(weights, num_parts)


def get_only_unique_item(items):
    unique = set(items)
    if len(unique) != 1:
        raise RuntimeError(f"the items differ: {items}")
    return unique.pop()


def clip_grad_norm_(parameters, max_norm, norm_type=2, mpu=None):
    """Clips to the norm over all ranks of the model-parallel group; returns that norm."""
    if isinstance(parameters, torch.Tensor):
        parameters = [parameters]
    grads = [p.grad for p in parameters if p.grad is not None]
    norm_type = float(norm_type)
    group = mpu.get_model_parallel_group() if mpu is not None else None
    if norm_type == math.inf:
        total = torch.stack([g.detach().abs().max() for g in grads]).max()
        if mpu is not None:
            dist.all_reduce(total, op=dist.ReduceOp.MAX, group=group)
    else:
        total = sum(g.detach().float().norm(norm_type)**norm_type for g in grads)
        total = torch.as_tensor(total, dtype=torch.float32)
        if mpu is not None:
            dist.all_reduce(total, group=group)
        total = total**(1 / norm_type)
    averaged = total.clone()
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(averaged)
        averaged /= dist.get_world_size()
    factor = torch.clamp(max_norm / (averaged + 1e-6), max=1.0)
    for grad in grads:
        grad.detach().mul_(factor.to(grad.device))
    return averaged


def get_weight_norm(parameters, norm_type=2, mpu=None):
    """The norm over all given tensors and the model-parallel group; -1 where it is not finite."""
    tensors = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    total = torch.as_tensor(sum(t.detach().float().norm(norm_type)**norm_type for t in tensors))
    if mpu is not None:
        dist.all_reduce(total, group=mpu.get_model_parallel_group())
    norm = float(total)**(1 / norm_type)
    return norm if math.isfinite(norm) else -1


get_grad_norm = get_flattened_grad_norm = get_weight_norm


def get_global_norm(norm_list):
    return math.sqrt(sum(float(norm)**2 for norm in norm_list))


class CheckOverflow:
    """Whether a gradient of some rank is infinite or not a number."""

    def __init__(self, param_groups=None, mpu=None, zero_reduce_scatter=False, deepspeed=None):
        self.mpu = mpu
        self.params = [p for group in param_groups or [] for p in group]

    @staticmethod
    def _has_inf_or_nan(tensor, j=None):
        return not bool(torch.isfinite(tensor).all())

    def check_using_norm(self, norm_group, reduce_overflow=True):
        return self._reduce(any(norm == -1 or not math.isfinite(norm) for norm in norm_group), reduce_overflow)

    def check(self, param_groups=None):
        params = self.params if param_groups is None else [p for group in param_groups for p in group]
        return self.has_overflow(params)

    def has_overflow_serial(self, params):
        return any(p.grad is not None and self._has_inf_or_nan(p.grad.data) for p in params)

    def has_overflow(self, params, has_moe_params=None):
        return self._reduce(self.has_overflow_serial(params))

    def _reduce(self, overflow, reduce_overflow=True):
        if not reduce_overflow or not dist.is_initialized():
            return bool(overflow)
        found = torch.tensor([float(overflow)], device=get_accelerator().current_device_name())
        group = self.mpu.get_model_parallel_group() if self.mpu is not None else None
        dist.all_reduce(found, op=dist.ReduceOp.MAX, group=group)
        return bool(found.item())


class PartitionedTensor:
    """A tensor of which each rank of a group keeps its part."""

    def __init__(self, tensor, group, partition_meta=None):
        self.group, self.num_parts, self.rank = group, dist.get_world_size(group), dist.get_rank(group)
        self.orig_size, self.orig_device = list(tensor.size()), tensor.device
        self.partition = partition_uniform(tensor.numel(), self.num_parts)
        self.local_data = tensor.detach().flatten()[self.partition[self.rank]:self.partition[self.rank + 1]].clone()

    @classmethod
    def from_meta(cls, meta, local_part, group, device=None):
        made = cls.__new__(cls)
        values = meta.tolist() if isinstance(meta, torch.Tensor) else list(meta)
        dims = values[0]
        made.orig_size = values[1:1 + dims]
        made.num_parts, made.rank = values[1 + dims], values[2 + dims]
        made.partition = values[3 + dims:]
        made.group, made.local_data = group, local_part
        made.orig_device = device or local_part.device
        return made

    def to_meta(self):
        values = [len(self.orig_size), *self.orig_size, self.num_parts, self.rank, *self.partition]
        return torch.tensor(values, dtype=torch.long, device=self.orig_device)

    def data(self):
        return self.local_data

    def local_size(self):
        return self.local_data.size()

    def full_size(self):
        return self.orig_size

    def full(self, device=None):
        sizes = [end - begin for begin, end in zip(self.partition, self.partition[1:])]
        widest = max(sizes)
        mine = torch.zeros(widest, dtype=self.local_data.dtype, device=self.local_data.device)
        mine[:self.local_data.numel()] = self.local_data
        parts = [torch.empty_like(mine) for _ in sizes]
        dist.all_gather(parts, mine, group=self.group)
        whole = torch.cat([part[:size] for part, size in zip(parts, sizes)])
        return whole.view(self.orig_size).to(device or self.orig_device)


def align_dense_tensors(tensors, alignment):
    rest = sum(t.numel() for t in tensors) % alignment
    if rest == 0:
        return tensors
    return tensors + [torch.zeros(alignment - rest, dtype=tensors[0].dtype, device=tensors[0].device)]


def call_to_str(base, *args, **kwargs):
    parts = [repr(arg) for arg in args] + [f"{key}={value!r}" for key, value in kwargs.items()]
    return f"{base}({', '.join(parts)})"


def required_torch_version(min_version=None, max_version=None):
    from deepspeed.utils.torch import required_torch_version as check
    return check(min_version, max_version)

"""Sequence parallelism (Ulysses): neighbours among the ranks have parts of the same sequences, and attention exchanges
parts of the sequence for parts of the heads.

    group = capstan.sequence_parallel.group_of(2)
    output = capstan.sequence_parallel.attend(attention, query, key, value, group)
"""

import torch
import torch.distributed as dist

from capstan import _C, process_group
from capstan.errors import ConfigError
from capstan.process_group import core_of


def group_of(size, among=None):
    """The `size` ranks that have parts of one sequence with this one. Collective over `among` (default: all ranks)."""
    return _part(size, _C.Axis.sequence, among)


def data_group_of(size, among=None):
    """The ranks that have the same part of other sequences, where `size` ranks share each. Collective."""
    return _part(size, _C.Axis.shard, among)


def _part(size, axis, among):
    whole = dist.group.WORLD if among is None else among
    if size < 1 or whole.size() % size:
        raise ConfigError(f"{whole.size()} ranks cannot share sequences in groups of {size}", "sequence_parallel_size",
                          "use a size that divides the number of ranks")
    return process_group.axis_group(axis, whole, shard=whole.size() // size, sequence=size)


def exchange(tensor, split, join, group):
    """Cuts `tensor` along dimension `split`, sends a part to each rank, and puts what arrives together along `join`.
    Differentiable; collective, and so is its backward."""
    return _C.exchange(tensor, split, join, core_of(group, tensor.device))


def part_length(length, size):
    """How many positions of a sequence each of `size` ranks has."""
    if length % size:
        raise ConfigError(f"sequences of {length} cannot be cut into {size} equal parts", "sequence parallelism",
                          f"fill them up to a multiple of {size}")
    return length // size


def queries_per_key(query, key):
    """How many query heads use each key head."""
    return query.shape[1] // key.shape[1]


def even_parts(items, parts):
    """Sizes that differ by one at most, the larger ones first."""
    return [items // parts + (i < items % parts) for i in range(parts)]


def exchange_uneven(tensor, split, join, group):
    """exchange() of what cannot be cut into equal parts, or has another length along `join` on each rank: parts travel
    filled up to the longest. Ranks tell each other their lengths first."""
    own = torch.tensor([tensor.shape[join]], device=tensor.device)
    lengths = gather(own, 0, group).tolist()
    sizes = even_parts(tensor.shape[split], group.size())
    parts = [_filled(part, split, sizes[0]) for part in _filled(tensor, join, max(lengths)).split(sizes, split)]
    moved = exchange(torch.cat(parts, split), split, join, group).narrow(split, 0, sizes[group.rank()])
    arrived = moved.split(max(lengths), join)
    return torch.cat([part.narrow(join, 0, length) for part, length in zip(arrived, lengths)], join)


def _filled(tensor, dim, length):
    """With zeros behind it, where it is shorter."""
    if tensor.shape[dim] == length:
        return tensor
    sizes = list(tensor.shape)
    sizes[dim] = length - sizes[dim]
    return torch.cat([tensor, tensor.new_zeros(sizes)], dim)


def to_heads(query, key, value, group):
    """Our heads of the whole sequence, from all heads of our part of it: each [batch, heads, sequence, width]."""
    return _C.to_heads(query, key, value, core_of(group, query.device))


def attend(attention, query, key, value, group):
    """attention(query, key, value), any that works head by head, over a sequence whose parts the ranks have. All are
    [batch, heads, sequence, width]; fewer key heads than query heads, and fewer than ranks, are fine."""
    return exchange(attention(*to_heads(query, key, value, group)), 2, 1, group)


def gather(tensor, dim, group):
    """The ranks' tensors, of one shape, one after the other along `dim`. Not differentiable."""
    parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(group.size())]
    dist.all_gather(parts, tensor.detach().contiguous(), group=group)
    return torch.cat(parts, dim)


class _GatherShared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, dim, group):
        ctx.dim, ctx.group = dim, group
        return gather(tensor, dim, group)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.chunk(ctx.group.size(), ctx.dim)[ctx.group.rank()], None, None


def gather_shared(tensor, dim, group):
    """gather() for what every rank goes on with alike: each takes its own part of the gradient, which all of them have."""
    return _GatherShared.apply(tensor, dim, group)

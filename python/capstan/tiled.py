"""Functions over long sequences, one tile of the sequence at a time: the memory of one tile instead of that of all."""

import contextlib

import torch
from torch.utils.checkpoint import checkpoint

from capstan.errors import ConfigError


def cut(tensor, count, dim):
    """Exactly `count` tiles whose lengths differ by one at most: at stage 3 every rank uses its parameters equally often."""
    if tensor.shape[dim] < count:
        raise ConfigError(f"{tensor.shape[dim]} positions cannot be cut into {count} tiles", "tiled compute",
                          "ask for no more tiles than the sequence has positions")
    return tensor.tensor_split(count, dim)


def shares(length, count):
    """The share of all positions that is in each tile: weights that make a mean of the tiles' means."""
    return [(length // count + (i < length % count)) / length for i in range(count)]


def outputs(function, tiles):
    """[function(*tile) for tile in tiles]. Between forward and backward only the tiles themselves are kept; the rest is
    computed again, with the same random numbers. A parameter gets its gradient once, the sum over all tiles."""
    if not torch.is_grad_enabled():
        return [function(*tile) for tile in tiles]
    return [checkpoint(function, *tile, use_reentrant=False) for tile in tiles]


def joined(values, dim):
    """One tensor: tiles one after the other along `dim`; numbers become a vector."""
    return torch.stack(values) if values[0].dim() == 0 else torch.cat(values, dim)


def weighted(values, weights):
    """sum(weight * value)"""
    return sum(value * weight for value, weight in zip(values, weights))


def loss(function, tiles, weights):
    """The sum of weight * function(*tile) over the tiles, each a number. The gradients are computed right here, so that
    nothing is computed twice: backward only multiplies them by its own.

    The first tensor of a tile is the one that is differentiated, beside all parameters that function uses.
    """
    first = tiles[0][0]
    if not torch.is_grad_enabled():
        return weighted([function(*tile) for tile in tiles], weights)
    if first.dtype == torch.float16:  # its gradients need the loss scale, which is known in backward only
        return weighted(outputs(function, tiles), weights)
    values, inputs, leaves, sums = [], [], [], []
    for (part, *rest), weight in zip(tiles, weights):
        part_leaf = part.detach().requires_grad_(part.requires_grad)
        value = function(part_leaf, *rest)
        values.append(value.detach())
        if not value.requires_grad:
            continue
        leaves = leaves or [leaf for leaf in _leaves(value.grad_fn) if leaf is not part_leaf]
        wanted = [part_leaf] * part.requires_grad + leaves
        found = [_widened(g, weight) for g in torch.autograd.grad(value, wanted, materialize_grads=True)]
        if part.requires_grad:
            inputs.append(found.pop(0).to(part.dtype))
        sums = [s.add_(g) for s, g in zip(sums, found)] if sums else found
    given = [part for part, *_ in tiles if part.requires_grad]
    return _Differentiated.apply(weighted(values, weights), inputs + sums, *given, *leaves)


def _widened(gradient, weight):
    """Its share, in the precision that sums over tiles are made in."""
    return (gradient.float() if gradient.dtype == torch.bfloat16 else gradient) * weight


def _leaves(node):
    """The tensors that require gradients and that a graph begins with, in an order that depends on the graph alone."""
    found, seen, todo = [], set(), [node]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        with contextlib.suppress(AttributeError):  # only nodes of leaves have one
            found.append(node.variable)
        todo.extend(previous for previous, _ in reversed(node.next_functions))
    return found


class _Differentiated(torch.autograd.Function):
    """A number whose gradients are known."""

    @staticmethod
    def forward(ctx, value, gradients, *tensors):
        ctx.gradients = gradients
        ctx.dtypes = [t.dtype for t in tensors]
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        return None, None, *((g * gradient).to(dtype) for g, dtype in zip(ctx.gradients, ctx.dtypes))

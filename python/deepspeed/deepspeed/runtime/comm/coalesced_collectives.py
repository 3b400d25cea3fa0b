"""One reduce-scatter for a list of tensors."""

import torch
import torch.distributed as dist

from deepspeed.later import names_of

globals().update(names_of(__name__))


@torch.no_grad()
def reduce_scatter_coalesced(tensors, group=None):
    """This rank's part of the average of each tensor: 1-D, ceil(numel / ranks) elements, shorter at the end."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    results = []
    for tensor in tensors:
        flat = tensor.detach().flatten()
        part = -(-flat.numel() // size)
        padded = torch.zeros(part * size, dtype=flat.dtype, device=flat.device)
        padded[:flat.numel()] = flat
        mine = torch.empty(part, dtype=flat.dtype, device=flat.device)
        dist.reduce_scatter_tensor(mine, padded.div_(size), group=group)
        used = max(0, min(part, flat.numel() - rank * part))
        results.append(mine[:used])
    return results

"""The optimizer's states as DeepSpeed lays them out over the ranks: one flat tensor per group, in equal parts.

Our own parts follow the units of the model and are not equal, so that this view is put together by all ranks.
"""

import torch
import torch.distributed as dist

from capstan import _C
from capstan.optimizers import KernelOptimizer
from deepspeed.utils.tensor_fragment import safe_get_full_optimizer_state


def _plain(state):
    """(names of tensors, the other entries) of one parameter's state."""
    tensors = [name for name, value in state.items() if torch.is_tensor(value) and value.dim() > 0]
    return tensors, {name: value for name, value in state.items() if name not in tensors}


def _known_states(engine, optimizer):
    """Names and counters; a rank without elements does not know them, so that all are asked."""
    mine = next((_plain(state) for state in optimizer.state.values() if state), None)
    if isinstance(optimizer, KernelOptimizer) and mine is not None:
        return mine
    everybodys = [None] * dist.get_world_size(engine.seq_data_parallel_group)
    dist.all_gather_object(everybodys, mine, group=engine.seq_data_parallel_group)
    return next((each for each in everybodys if each is not None), ([], {}))


def part_of(flat, stage, rank, ranks):
    """One rank's part of a flat tensor, filled up as the others are; a copy."""
    pieces = _C.flat_part([flat.numel()], stage, rank, ranks)
    return torch.cat([flat[begin:begin + elems] if tensor == 0 else flat.new_zeros(elems)
                      for tensor, begin, elems in pieces] or [flat[:0]])


def _own_part(engine, params, name):
    """This rank's part of the flat state `name` of a group's parameters, read one parameter at a time."""
    group = engine.seq_data_parallel_group
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    sizes = [getattr(param, "ds_numel", param.numel()) for param in params]
    pieces = _C.flat_part(sizes, engine.zero_optimization_stage(), rank, ranks)
    parts, like = {}, None
    for index, param in enumerate(params):  # all of them, on every rank: reading is collective
        like = safe_get_full_optimizer_state(param, name).flatten()
        parts.update((piece, like[piece[1]:piece[1] + piece[2]].clone()) for piece in pieces if piece[0] == index)
    return torch.cat([parts[piece] if piece in parts else like.new_zeros(piece[2]) for piece in pieces] or [like[:0]])


def flat_state_dict(engine, optimizer):
    """Collective. torch's state_dict() of an optimizer that has one parameter per group: its part of the group."""
    params = dict(engine.module.named_parameters())
    names, counters = _known_states(engine, optimizer)
    state, groups = {}, []
    for g, (members, group) in enumerate(zip(engine.group_names, optimizer.param_groups)):
        groups.append({**{key: value for key, value in group.items() if key != "params"}, "params": [g]})
        if names and members:
            state[g] = {**counters, **{name: _own_part(engine, [params[member] for member in members], name)
                                       for name in names}}
    return {"state": state, "param_groups": groups}


def show_flat(engine, optimizer):
    """optimizer.state_dict() gives flat_state_dict() from here on."""
    optimizer.state_dict = lambda: flat_state_dict(engine, optimizer)


def show_own(optimizer):
    """optimizer.state_dict() is the optimizer's own again."""
    vars(optimizer).pop("state_dict", None)

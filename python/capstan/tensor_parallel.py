"""Tensor parallelism: neighbours among the ranks split the layers of a model between them.

    engine = capstan.initialize(model, {..., "tensor_parallel": {"autotp_size": 2}})

does it by itself; split(model, 2) does it before there is an engine.
"""

import torch
import torch.distributed as dist

from capstan import _C, process_group, tensor_layers
from capstan.errors import ConfigError
from capstan.params import handle_of
from capstan.tensor_layers import Column, Ranks, Row, slice_of, with_parts
from capstan.tensor_plan import ATTRIBUTES, attention_of, plan_of, uses_plan

_RANKS = "_capstan_tensor_ranks"


def group_of(size, among=None):
    """The `size` ranks that have parts of one model with this one. Collective over `among` (default: all ranks)."""
    return _part(size, _C.Axis.tensor, among)


def data_group_of(size, among=None):
    """The ranks that have the same parts of it and other data. Collective."""
    return _part(size, _C.Axis.shard, among)


def _part(size, axis, among):
    whole = dist.group.WORLD if among is None else among
    if size < 1 or whole.size() % size:
        raise ConfigError(f"{whole.size()} ranks cannot split models in groups of {size}", "tensor_parallel.autotp_size",
                          "use a size that divides the number of ranks")
    return process_group.axis_group(axis, whole, shard=whole.size() // size, tensor=size)


def ranks_of(model):
    """Those that have split it, or None: it is whole."""
    return vars(model).get(_RANKS)


def take_ranks(model, ranks):
    """From here on the model is one that they have split."""
    setattr(model, _RANKS, ranks)


def overrides(model, document):
    """What a model that is split already says of a configuration: path -> (value, why)."""
    ranks = ranks_of(model)
    return {} if ranks is None else size_given(ranks.size, "the model is split already", document)


def size_given(size, why, document):
    """A configuration's override by something that was there before it; raises ConfigError where it says otherwise."""
    said = (document.root.get("tensor_parallel") or {}).get("autotp_size", "auto")
    if said not in ("auto", 0, size):
        raise ConfigError(f"the configuration says {said}, but {size} ranks split the model ({why})", "tensor_parallel.autotp_size",
                          "use the same size, or leave the key out")
    return {"tensor_parallel.autotp_size": (size, why)}


def split(model, size, among=None, rules=None):
    """Each of `size` neighbours keeps its part of every layer, of the weights that the first of them has; returns the model.
    Once is enough: a model that is split so already stays as it is. `rules`: partition_rules of a configuration. Collective."""
    before = ranks_of(model)
    if before is not None and before.size != size:
        raise ConfigError(f"the model is split between {before.size} ranks already, not {size}", "tensor_parallel.autotp_size",
                          "use the same size everywhere")
    if before is not None or size == 1:
        return model
    _check_values(model)
    plan = plan_of(model, size, rules)
    ranks = Ranks(group_of(size, among))
    _agree(model, ranks)
    modules, by_names = dict(model.named_modules()), not uses_plan(model)
    attentions = {attention_of(modules, name) for name in plan} - {None}
    for name, how in plan.items():
        _apply(modules[name], how, ranks)
    for name in attentions if by_names else ():
        for inside in modules[name].modules():
            if isinstance(inside, torch.nn.Module) and "attention" in type(inside).__name__.lower():
                tensor_layers.divide(inside, ATTRIBUTES, size)
    take_ranks(model, ranks)
    return model


def _apply(module, how, ranks):
    if how.kind == "vocabulary":
        tensor_layers.make_vocabulary(module, ranks)
    elif how.kind == "heads":
        tensor_layers.keep_heads(module, ranks)
    elif how.kind == "summed":
        tensor_layers.sum_gradients(module, ranks)
    else:
        tensor_layers.make_linear(module, {"column": Column, "row": Row}[how.kind], ranks, whole_outside=how.whole_outside,
                                  blocks=how.blocks)


def _check_values(model):
    for name, param in model.named_parameters():
        if handle_of(param) is not None or param.is_meta:
            raise ConfigError(f"parameter '{name}' has no values yet, or is sharded, so that it cannot be split",
                              "tensor_parallel.autotp_size",
                              "make the model without zero.Init (capstan.sharded) and not on the device meta")


def _agree(model, ranks):
    """All have the values of the first, and draw the same random numbers: those of dropout outside of split layers."""
    travel = process_group.travel_device(ranks.group)
    first = dist.get_global_rank(ranks.group, 0)
    tensors = [*model.parameters(), *model.buffers()]
    for tensor in tensors:
        if tensor.numel() > 0:
            moved = tensor.data.to(travel).contiguous()
            dist.broadcast(moved.view(-1).view(torch.uint8), first, group=ranks.group)
            tensor.data.copy_(moved)
    state = torch.get_rng_state().to(travel)
    dist.broadcast(state, first, group=ranks.group)
    torch.set_rng_state(state.cpu())
    if torch.cuda.is_available():
        state = torch.cuda.get_rng_state().to(travel)
        dist.broadcast(state, first, group=ranks.group)
        torch.cuda.set_rng_state(state.cpu())


def follow(optimizer):
    """The groups of an optimizer that was made before get the parameters that others were cut into."""
    for group in getattr(optimizer, "param_groups", ()):
        group["params"] = with_parts(group["params"])


def gather(param, value, wanted=True):
    """`value` of all ranks' parts: [(begin, part)] along the dimension that is cut, on the CPU; None unless `wanted`.
    Collective."""
    piece = slice_of(param)
    travel = process_group.travel_device(piece.ranks.group)
    parts = [torch.empty(value.shape, dtype=value.dtype, device=travel) for _ in range(piece.ranks.size)]
    dist.all_gather(parts, value.detach().to(travel).contiguous(), group=piece.ranks.group)
    if not wanted:
        return None
    return [(piece.begin + rank * piece.length, part.cpu()) for rank, part in enumerate(parts)]


def check_same(ranks, values):
    """Raises ConfigError on all ranks unless they were given the same tensors and would draw the same random numbers."""
    travel = process_group.travel_device(ranks.group)
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    device = leaves[0].device if leaves else torch.device("cpu")
    states = [torch.get_rng_state()] + ([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])
    own = torch.stack([_sum_of(leaves), _sum_of(states)]).to(travel)
    parts = [torch.empty_like(own) for _ in range(ranks.size)]
    dist.all_gather(parts, own, group=ranks.group)
    what, fix = next(((what, fix) for place, (what, fix) in enumerate(_DIFFERENCES)
                      if any(part[place] != parts[0][place] for part in parts)), (None, None))
    if what is not None:
        raise ConfigError(f"ranks that split one model {what}", f"the {ranks.size} tensor ranks of rank {dist.get_rank()}", fix)


_DIFFERENCES = (
    ("were given different batches", "deal data to data-parallel ranks: rank // tensor_parallel.autotp_size, of "
     "ranks / tensor_parallel.autotp_size (DistributedSampler(num_replicas=..., rank=...))"),
    ("would draw different random numbers", "seed them alike: by rank // tensor_parallel.autotp_size, not by rank"))


def _sum_of(tensors):
    """A number that depends on every byte and its place."""
    total = torch.zeros((), dtype=torch.int64)
    for tensor in tensors:
        values = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).to(torch.int64)
        total = total * 31 + (values * (torch.arange(values.numel()) % 8191 + 1)).sum() + values.numel()
    return total

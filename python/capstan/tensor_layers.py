"""Layers of which each rank of a tensor group has a part. They are a model's own modules, of a class that computes with
the part: names, hooks and parameters stay."""

import functools
from typing import NamedTuple

import torch
from torch import nn

from capstan import _C, process_group
from capstan.errors import ConfigError

_SLICE, _PARTS = "_capstan_slice", "_capstan_parts"


class Ranks:
    """Those that split a model between them; `ours`: with layers of this module."""

    def __init__(self, group, ours=True):
        self.group, self.ours = group, ours

    @property
    def rank(self):
        return self.group.rank()

    @property
    def size(self):
        return self.group.size()

    def core(self, tensor):
        return process_group.core_of(self.group, tensor.device)

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        raise ConfigError("a model that ranks have split between them cannot be pickled", "tensor parallelism",
                          "use save_checkpoint() or save_pretrained() of its engine")


class Slice(NamedTuple):
    """What a parameter is: of a tensor `name` of its module, `length` along `dim`; parts of the ranks follow each other from
    `begin`, that of the first."""

    name: str
    shape: tuple
    dim: int
    begin: int
    length: int
    ranks: Ranks

    def box(self, rank=None):
        """(where it begins, how long it is), by dimension."""
        rank = self.ranks.rank if rank is None else rank
        begin, length = [0] * len(self.shape), list(self.shape)
        begin[self.dim], length[self.dim] = self.begin + rank * self.length, self.length
        return begin, length


def slice_of(param):
    """None: it is whole."""
    return getattr(param, _SLICE, None)


def mark(param, piece):
    setattr(param, _SLICE, piece)


def stored_name(name, param):
    """What the tensor is called that the parameter `name` is all or a part of."""
    piece = slice_of(param)
    return name if piece is None else ".".join([*name.split(".")[:-1], piece.name])


def slices(named_params):
    """As the core takes them: (name, the whole one's, its shape, begin, length) of each that is a part of a larger one."""
    found = []
    for name, param in named_params:
        piece = slice_of(param)
        if piece is not None:
            begin, length = piece.box()
            found.append((name, stored_name(name, param), list(piece.shape), begin, length))
    return found


def with_parts(params):
    """Each parameter, and behind it those that it was cut into beside itself."""
    known = {id(p) for p in params}
    return [each for p in params for each in (p, *(q for q in getattr(p, _PARTS, ()) if id(q) not in known))]


def cut(module, name, dim, ranks, blocks=1):
    """A parameter becomes this rank's part of it along `dim`: of `blocks` equal blocks, each a parameter then, the part of
    each. The first is the same object as before."""
    param = module._parameters.get(name)
    if param is None or slice_of(param) is not None:  # another layer has the same one
        return
    shape, whole = tuple(param.shape), param.data
    block = shape[dim] // blocks
    length = block // ranks.size
    values = [whole.narrow(dim, b * block + ranks.rank * length, length).clone(memory_format=torch.contiguous_format)
              for b in range(blocks)]
    param.data = values[0]
    others = [nn.Parameter(value, param.requires_grad) for value in values[1:]]
    for number, part in enumerate([param, *others]):
        mark(part, Slice(name, shape, dim, number * block, length, ranks))
        if number > 0:
            module.register_parameter(f"{name}_{number}", part)
    setattr(param, _PARTS, others)


def parts_of(module, name):
    """A tensor as forward uses it: what cut() made of it, side by side."""
    first = getattr(module, name)
    if module.blocks == 1 or first is None:
        return first
    parts = [first, *(getattr(module, f"{name}_{number}") for number in range(1, module.blocks))]
    return torch.cat(parts, -1 if module.transposed else 0)


class _Linear:
    """torch.nn.Linear, or transformers' Conv1D, whose weight is [in, out]."""

    @property
    def matrix(self):
        weight = parts_of(self, "weight")
        return weight.t() if self.transposed else weight


class Column(_Linear):
    """Has a part of the outputs; with `whole_outside`, all are gathered."""

    def forward(self, x):
        core = self.ranks.core(x)
        output = _C.column_linear(x, self.matrix, parts_of(self, "bias"), core)
        return _C.gather_last(output, core) if self.whole_outside else output


class Row(_Linear):
    """Takes a part of the inputs; with `whole_outside`, of those that are there it takes its own."""

    def forward(self, x):
        core = self.ranks.core(x)
        if self.whole_outside:
            x = _C.scatter_last(x, core)
        return _C.row_linear(x, self.matrix, self.bias, core)


class Vocabulary:
    """An embedding, of which it has a part of the rows."""

    def forward(self, ids):
        return _C.vocab_embedding(ids, self.weight, self.num_embeddings, self.padding_idx, self.ranks.core(ids))


class Summed:
    """Its parameters are whole on all ranks, and each uses them for its own part of the activations."""

    def forward(self, *args, **kwargs):
        own = self._parameters
        self._parameters = {name: p if p is None else _C.copy_in(p, self.ranks.core(p)) for name, p in own.items()}
        try:
            return super().forward(*args, **kwargs)
        finally:
            self._parameters = own


@functools.lru_cache(maxsize=None)
def _class_of(kind, base):
    return type(f"{kind.__name__}{base.__name__}", (kind, base), {"__module__": __name__})


def _become(module, kind, ranks):
    module.__class__ = _class_of(kind, type(module))
    module.ranks = ranks


def is_transposed(module):
    return type(module).__name__ == "Conv1D"


def make_linear(module, kind, ranks, *, whole_outside=False, blocks=1):
    module.transposed, module.blocks, module.whole_outside = is_transposed(module), blocks, whole_outside
    out_dim = 1 if module.transposed else 0
    if kind is Column:
        cut(module, "weight", out_dim, ranks, blocks)
        cut(module, "bias", 0, ranks, blocks)
        divide(module, ("out_features", "nf"), ranks.size)
    else:
        cut(module, "weight", 1 - out_dim, ranks)
        divide(module, ("in_features", "nx"), ranks.size)
    _become(module, kind, ranks)


def make_vocabulary(module, ranks):
    cut(module, "weight", 0, ranks)
    _become(module, Vocabulary, ranks)


def keep_heads(module, ranks):
    """An embedding of one number per head keeps those of our heads; nothing travels."""
    cut(module, "weight", 1, ranks)
    divide(module, ("embedding_dim",), ranks.size)


def sum_gradients(module, ranks):
    _become(module, Summed, ranks)


def divide(module, names, size):
    for name in names:
        if isinstance(getattr(module, name, None), int):
            setattr(module, name, getattr(module, name) // size)

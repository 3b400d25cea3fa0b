"""Parameters that are sharded: whole while somebody holds them, placeholders of shape [0] otherwise."""

import collections
import contextlib
import enum
import itertools
import weakref

import torch

from capstan.errors import ConfigError
from capstan.writes import Writes

_HANDLE, _ID, _GONE = "_capstan_handle", "_capstan_id", "_capstan_gone"
_ids = itertools.count()
_left = weakref.WeakValueDictionary()  # parameters whose engines are gone, while they are sharded still


class ParamStatus(enum.Enum):
    AVAILABLE = 1
    NOT_AVAILABLE = 2
    INFLIGHT = 3


def handle_of(param):
    """What can gather this parameter, or None: it is an ordinary one."""
    return getattr(param, _HANDLE, None)


class EngineParam:
    """A parameter of a model that an engine manages; the counterpart of _C.LooseShard."""

    def __init__(self, engine, index, sizes):
        self._engine, self.index, self.sizes = weakref.ref(engine), index, sizes

    def __reduce__(self):
        return type(None), ()  # what is copied or pickled belongs to no engine

    @property
    def engine(self):
        """The engine, or None after it is gone."""
        engine = self._engine()
        return engine if engine is not None and engine.core is not None else None

    @property
    def core(self):
        engine = self.engine
        return engine.core if engine is not None else None

    @property
    def whole(self):
        return self.core is None or self.core.is_whole(self.index)

    @property
    def gathering(self):
        return self.core is not None and self.core.is_gathering(self.index)

    @property
    def resident(self):
        """Whether it stays whole between its uses."""
        return self.core is None or self.core.is_resident(self.index)

    @property
    def sharded(self):
        return self.engine is not None and self.engine.core_config.shards_params

    @property
    def group(self):
        return self.engine.core_group if self.engine is not None else None

    @property
    def travel(self):
        return self.engine.device

    @property
    def changes(self):
        """How often the engine changed values; nobody's after it is gone."""
        return self.core.changes if self.core is not None else -1

    def pin(self):
        if self.core is not None:
            self.core.pin([self.index])

    def unpin(self):
        if self.core is not None:
            self.core.unpin([self.index])

    def take_from(self, root):
        if self.core is not None:
            self.core.take_from(self.index, root)


class OwnElements(torch.Tensor):
    """A rank's elements of a parameter, the very memory: setting `data` writes them, as writing in place does."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # results are ordinary tensors

    @property
    def data(self):
        return self.detach()

    @data.setter
    def data(self, values):
        with torch.no_grad():
            self.copy_(values)


class ShardedParameter(torch.nn.Parameter):
    """What the class of a parameter becomes when it is sharded; the object stays the same."""

    @property
    def ds_id(self):
        return getattr(self, _ID)

    @property
    def ds_status(self):
        handle = handle_of(self)
        if handle.whole:
            return ParamStatus.AVAILABLE
        gathering = isinstance(handle, EngineParam) and handle.gathering
        return ParamStatus.INFLIGHT if gathering else ParamStatus.NOT_AVAILABLE

    @property
    def ds_persist(self):
        """Whether it stays whole between its uses; before there is an engine, none does."""
        handle = handle_of(self)
        return isinstance(handle, EngineParam) and handle.resident

    @property
    def ds_shape(self):
        return torch.Size(handle_of(self).sizes)

    @property
    def ds_numel(self):
        return self.ds_shape.numel()

    @property
    def ds_tensor(self):
        """This rank's elements, 1-D; ceil(numel / ranks) of them, the last ones padding, where its unit has no other."""
        handle = handle_of(self)
        part = handle.part if not isinstance(handle, EngineParam) else handle.core.local_param(handle.index)
        part = part.as_subclass(OwnElements)
        part.ds_numel = part.numel()
        part.status = ParamStatus.AVAILABLE
        return part

    def item(self):
        with _whole([self]):
            return self.data.item()

    def __deepcopy__(self, memo):
        if id(self) in memo:
            return memo[id(self)]
        with _whole([self]):
            memo[id(self)] = copy = torch.nn.Parameter(self.data.clone(), self.requires_grad)
        return copy

    def __reduce_ex__(self, protocol):
        if not handle_of(self).whole:
            raise RuntimeError("a sharded parameter cannot be pickled: do it inside capstan.gathered()")
        return torch._utils._rebuild_parameter, (self.data, self.requires_grad, collections.OrderedDict())


def adopt(param, handle):
    """Gives a parameter to `handle`, the first time or from an earlier one."""
    if not hasattr(param, _ID):
        setattr(param, _ID, next(_ids))
    setattr(param, _HANDLE, handle)


def mark_sharded(param):
    if type(param) is torch.nn.Parameter:
        param.__class__ = ShardedParameter


def release(param):
    """The parameter is an ordinary one again."""
    handle = handle_of(param)
    if handle is not None:
        delattr(param, _HANDLE)
        if not handle.whole:
            setattr(param, _GONE, True)
    if type(param) is ShardedParameter:
        param.__class__ = torch.nn.Parameter
    if hasattr(param, _ID):
        delattr(param, _ID)


def leave(param, shard):
    """Its engine goes: the parameter is an ordinary one again, or keeps its shard until the next engine takes it."""
    if shard is None:
        release(param)
    else:
        adopt(param, shard)
        _left[getattr(param, _ID)] = param


def forget_left():
    """At the end of the program: shards that were left hold on to a group."""
    for param in list(_left.values()):
        if not isinstance(handle_of(param), EngineParam):
            release(param)


def check_values(model):
    """Raises ConfigError for parameters whose values an engine has, or had when it was closed."""
    for name, param in model.named_parameters():
        handle = handle_of(param)
        if isinstance(handle, EngineParam) and not handle.whole:
            raise ConfigError(f"parameter '{name}' is sharded by another engine", "initialize",
                              "keep using that engine, or give copy.deepcopy(model), which is whole, to a second one")
        if handle is None and getattr(param, _GONE, False) and param.numel() == 0:
            raise ConfigError(f"parameter '{name}' has no values: they were freed with the engine that was closed",
                              "initialize", "build the model again, or use copy.deepcopy(model) before the engine is closed")


def flat_list(params):
    if isinstance(params, torch.Tensor):
        return [params]
    if isinstance(params, torch.nn.Module):
        return list(params.parameters())
    return [p for p in params if p is not None]


def _managed(params):
    """Those that somebody can gather, each once, in an order that all ranks share."""
    found = {getattr(p, _ID): p for p in flat_list(params) if handle_of(p) is not None}
    return [found[key] for key in sorted(found)]


@contextlib.contextmanager
def _whole(params):
    held = []
    try:
        for handle in [handle_of(param) for param in params]:
            handle.pin()
            held.append(handle)
        yield
    finally:
        for handle in held:
            handle.unpin()


@contextlib.contextmanager
def gathered(params, modifier_rank=None):
    """Holds parameters whole; ordinary ones and None are passed over. Collective, both ways.

    With `modifier_rank`, what that rank wrote becomes everybody's. Without, parameters that are sharded may only be read:
    if a rank wrote into one, all ranks raise ConfigError.
    """
    params = _managed(params)
    sharded = [p for p in params if modifier_rank is None and getattr(handle_of(p), "sharded", True)]
    with _whole(params):
        writes = Writes(sharded, map(handle_of, sharded))
        yield
        if modifier_rank is not None:
            for param in params:
                handle_of(param).take_from(modifier_rank)
        written = writes.found()
    if written:
        writes.refuse()

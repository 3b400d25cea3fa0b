"""Building a model whose parameters are sharded one by one as its modules are made."""

import contextlib
import functools
import weakref

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from capstan import _C, params, process_group
from capstan.progress import Progress

_active = []      # contexts that are entered, innermost last
_suspended = []   # contexts that an engine's construction has set aside


# Attributes that a sharded parameter answers as a whole one, and those that are a way to its values.
_SIZES = {torch.Tensor.shape.__get__: lambda sizes: sizes, torch.Tensor.ndim.__get__: len}
_VALUES = {getattr(torch.Tensor, name).__get__ for name in ("data", "T", "mT", "H", "mH", "real", "imag", "nbytes")}


def _subclasses(cls):
    for sub in cls.__subclasses__():
        yield sub
        yield from _subclasses(sub)


class _WholeWhenTouched(TorchFunctionMode):
    """An operation on sharded parameters sees them whole, and what rank 0 writes becomes everybody's.

    Initialisers that run when a model is complete (as Hugging Face's do) then work as outside of the context. Those that
    were touched last stay whole until others are, for views of them may still be written.
    """

    def __init__(self, note):
        super().__init__()
        self._held, self._holding, self._note = [], contextlib.ExitStack(), note

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in _SIZES and isinstance(args[0], params.ShardedParameter):
            return _SIZES[func](args[0].ds_shape)
        is_attribute = getattr(func, "__name__", "") in ("__get__", "__set__", "__delete__")
        if not is_attribute or func in _VALUES:
            self._hold([a for a in pytree.tree_leaves((args, kwargs)) if isinstance(a, params.ShardedParameter)])
        return func(*args, **kwargs)

    def _hold(self, touched):
        if not touched or all(any(p is q for q in self._held) for p in touched):
            return
        self.let_go()
        self._holding.enter_context(params.gathered(touched, modifier_rank=0))
        self._held = touched
        self._note(touched)

    def let_go(self):
        self._held = []
        self._holding.close()


class ShardedInit:
    """In this context every module's own parameters are sharded when its constructor ends.

    The weights are those of a construction outside of it with the same seed: until the context ends, parameters are what
    their modules made them (fp32, most often) and initialisers draw in that dtype. Then they are cast to `dtype`.
    """

    title = "building a sharded model"

    def __init__(self, group, dtype, *, apply_gathers=True, enabled=True):
        self.enabled, self.dtype, self._apply_gathers = enabled, dtype, apply_gathers
        self._wrapped, self._building, self._touch = [], [], _WholeWhenTouched(self._note_touch)
        self._made, self._elems, self._touched = [], 0, set()
        if enabled:
            self.travel = process_group.travel_device(group)
            self.group = process_group.core_group(group, self.travel)
            self._progress = Progress(self.title, self.group.rank == 0)

    def shard(self, param, name):
        """One parameter; one that is sharded already stays as it is."""
        if params.handle_of(param) is not None:
            return
        self._elems += param.numel()
        shard_beside(param, self, name)
        self._made.append(weakref.ref(param))
        self._note()

    def _note_touch(self, touched):
        self._touched.update(map(id, touched))
        self._note()

    def _note(self):
        made, touched = len(self._made), min(len(self._made), len(self._touched))
        initialised = f", {touched} of them initialised by the model" if touched else ""
        self._progress.show(f"{made} tensors with {self._elems / 1e6:.1f} M parameters{initialised}", touched,
                            made if touched else 0)

    def _cast(self):
        """What was built takes its dtype, after the last initialiser."""
        if self.dtype is not None:
            for param in (made() for made in self._made):
                handle = params.handle_of(param)
                if isinstance(handle, _C.LooseShard) and param.dtype.is_floating_point:
                    handle.cast(self.dtype)
        self._made, self._elems, self._touched = [], 0, set()
        self._progress.close()

    def shard_module(self, module):
        """Everything in a model that exists."""
        for name, param in module.named_parameters():
            self.shard(param, name)

    def _finished(self, module):
        kind = type(module).__name__
        for name, param in module._parameters.items():
            if param is not None and not param.is_meta:
                self.shard(param, f"{kind}.{name}")

    def _wrap(self, cls):
        made = cls.__dict__.get("__init__")
        if made is None or cls in (nn.Module,):
            return

        @functools.wraps(made)
        def build(module, *args, **kwargs):
            outermost = not any(module is other for other in self._building)
            if not outermost or _active[-1:] != [self]:
                return made(module, *args, **kwargs)
            self._building.append(module)
            try:
                made(module, *args, **kwargs)
            finally:
                self._building.pop()
            if isinstance(module, nn.Module) and "_parameters" in module.__dict__:
                self._finished(module)
            return None

        cls.__init__ = build
        self._wrapped.append((cls, made))

    def _enter(self):
        for cls in set(_subclasses(nn.Module)):
            self._wrap(cls)
        self._new_class = nn.Module.__dict__.get("__init_subclass__")
        init = self

        @classmethod
        def new_class(cls, **kwargs):
            super(nn.Module, cls).__init_subclass__(**kwargs)
            init._wrap(cls)

        nn.Module.__init_subclass__ = new_class
        self._plain_to_empty = nn.Module.to_empty

        def to_empty(module, *, device, recurse=True):
            """What was built on the meta device gets its memory, and is sharded."""
            init._plain_to_empty(module, device=device, recurse=recurse)
            for part in module.modules():
                init._finished(part)
            return module

        nn.Module.to_empty = to_empty
        if self._apply_gathers:
            self._plain_apply = nn.Module.apply
            nn.Module.apply = _gathering_apply

    def _leave(self):
        for cls, made in self._wrapped:
            cls.__init__ = made
        self._wrapped = []
        if self._new_class is None:
            del nn.Module.__init_subclass__
        else:
            nn.Module.__init_subclass__ = self._new_class
        nn.Module.to_empty = self._plain_to_empty
        if self._apply_gathers:
            nn.Module.apply = self._plain_apply

    def __enter__(self):
        if self.enabled:
            if not _active:  # inside another one, that one does the work
                self._progress = Progress(self.title, self.group.rank == 0)
                self._enter()
                self._touch.__enter__()
            _active.append(self if not _active else _active[-1])
        return self

    def __exit__(self, *error):
        if self.enabled:
            outer = _active.pop()
            if not _active:
                outer._touch.__exit__(*error)
                if not any(error):  # after an error the other ranks may be elsewhere
                    outer._touch.let_go()
                outer._cast()
                outer._leave()
        return False


def sharded(config=None, *, group=None):
    """A context in which modules are sharded as they are built, one after the other, over the ranks of `group`; when it
    ends, their parameters take the dtype that `config` trains them in. Collective.

        with capstan.sharded(config):
            model = Model()
        engine = capstan.initialize(model, config, optimizer=...)
    """
    process_group.init_distributed()
    dtype = None
    if config is not None:
        dtype = _C.resolve_config(_C.read_config(config), door=_C.Door.CAPSTAN, reads_only=True).param_dtype
    return ShardedInit(group, dtype)


def shard_beside(param, handle, name="a later parameter"):
    """Shards a parameter over the ranks of another one, whose handle this is; it keeps its dtype."""
    if params.handle_of(param) is None:
        params.adopt(param, _C.LooseShard(param, name, handle.group, handle.travel))
        params.mark_sharded(param)


def _gathering_apply(module, function):
    """nn.Module.apply whose function sees whole parameters; rank 0's changes become everybody's."""
    for child in module.children():
        child.apply(function)
    with params.gathered(module._parameters.values(), modifier_rank=0):
        function(module)
    return module


def suspend():
    """Construction goes on as if no context were entered, until resume(). What was built is ready for an engine."""
    _suspended.append(_active[-1] if _active else None)
    if _suspended[-1] is not None:
        _suspended[-1]._touch.let_go()
        _suspended[-1]._cast()
        _suspended[-1]._leave()


def resume():
    context = _suspended.pop()
    if context is not None:
        context._enter()

"""Tells the C++ core before and after each use of a unit, and of parameters that a module borrows from another."""

import torch

from capstan import tensors


class BorrowedParams(dict):
    """The parameters of one module: reading one that is sharded inside somebody's forward gathers it for that, and one
    whose update still runs is waited for."""

    def __init__(self, params=(), core=None, index=None, parent_module=None):
        super().__init__(params)
        self._core, self._index = core, index or {}

    def __getitem__(self, name):
        param = super().__getitem__(name)
        index = self._index.get(id(param))
        if index is not None:
            self._core.borrow(index)
        return param

    def items(self):
        self._await_updates()
        return super().items()

    def values(self):
        self._await_updates()
        return super().values()

    def _await_updates(self):
        if self._index:
            self._core.await_updates(list(self._index.values()))

    def __reduce__(self):
        return dict, (dict(self.items()),)


def _pass(*args):
    """In copies of a model: they belong to no engine."""


def _no_hook():
    return _pass


class _Hook:
    def __reduce__(self):
        return _no_hook, ()


class _Before(_Hook):
    def __init__(self, core, boundary):
        self._core, self._boundary = core, boundary

    def __call__(self, module, args, kwargs):
        if not torch.is_grad_enabled():
            self._core.begin_forward(self._boundary, [])
            return None
        inputs = []
        tensors.visit(args, inputs)
        tensors.visit(kwargs, inputs)
        inputs = [t for t in inputs if t.requires_grad]
        seen = dict(zip(map(id, inputs), self._core.begin_forward(self._boundary, inputs)))
        if not seen:
            return None
        change = lambda t: seen.get(id(t), t)
        return tensors.replace(args, change), tensors.replace(kwargs, change)


class _After(_Hook):
    def __init__(self, core, index):
        self._core, self._index = core, index

    def __call__(self, module, args, output):
        outputs = []
        tensors.visit(output, outputs)
        self._core.end_forward([t for t in outputs if t.requires_grad] if torch.is_grad_enabled() else [])
        for tensor in outputs:  # a parameter that is handed out stays whole for the one who called
            if isinstance(tensor, torch.nn.Parameter) and id(tensor) in self._index:
                self._core.also_uses(self._index[id(tensor)])


class UseHooks:
    """Hooks on the modules that are units. remove() takes all of them away."""

    def __init__(self, core, view):
        self._core, self._index, self._handles, self._borrowing = core, view.index, [], []
        for boundary, (name, needed) in enumerate(core.boundaries()):
            if needed:  # at stage 3, and where updates are late; then always for the root
                self._watch(boundary, view.modules[name])
        if self._handles:
            for module in view.modules.values():
                self._borrow(module, empty=False)

    def _watch(self, boundary, module):
        self._handles.append(module.register_forward_pre_hook(_Before(self._core, boundary), with_kwargs=True))
        self._handles.append(module.register_forward_hook(_After(self._core, self._index), always_call=True))

    def _borrow(self, module, empty):
        index = {id(p): self._index[id(p)] for p in module._parameters.values() if id(p) in self._index}
        if index or empty:
            self._borrowing.append(module)
            module._parameters = BorrowedParams(module._parameters, self._core, index)

    def lend(self, module):
        """A module that came late may read what it shares with the others."""
        if self._handles:
            self._borrow(module, empty=True)

    def remove(self):
        for handle in self._handles:
            handle.remove()
        for module in self._borrowing:
            module._parameters = dict(module._parameters)
        self._handles, self._borrowing = [], []

"""Tells the C++ core before and after each use of a unit, and of parameters that a module borrows from another."""

import torch

from capstan import tensors


class BorrowedParams(dict):
    """The parameters of one module: reading one that is sharded inside somebody's forward gathers it for that."""

    def __init__(self, params=(), core=None, index=None, parent_module=None):
        super().__init__(params)
        self._core, self._index = core, index or {}

    def __getitem__(self, name):
        param = super().__getitem__(name)
        index = self._index.get(id(param))
        if index is not None and not self._core.is_whole(index):
            self._core.also_uses(index)
        return param


class UseHooks:
    """Hooks on the modules that are units. remove() takes all of them away."""

    def __init__(self, core, view):
        self._core, self._index, self._handles, self._borrowing = core, view.index, [], []
        for boundary, (name, needed) in enumerate(core.boundaries()):
            if needed:  # never below stage 3, and always at it for the root
                self._watch(boundary, view.modules[name])
        if self._handles:
            self._lend(view)

    def _watch(self, boundary, module):
        core = self._core

        def before(module, args, kwargs):
            if not torch.is_grad_enabled():
                core.begin_forward(boundary, [])
                return None
            inputs = []
            tensors.visit(args, inputs)
            tensors.visit(kwargs, inputs)
            inputs = [t for t in inputs if t.requires_grad]
            seen = dict(zip(map(id, inputs), core.begin_forward(boundary, inputs)))
            if not seen:
                return None
            change = lambda t: seen.get(id(t), t)
            return tensors.replace(args, change), tensors.replace(kwargs, change)

        index = self._index

        def after(module, args, output):
            outputs = []
            tensors.visit(output, outputs)
            core.end_forward([t for t in outputs if t.requires_grad] if torch.is_grad_enabled() else [])
            for tensor in outputs:  # a parameter that is handed out stays whole for the one who called
                if isinstance(tensor, torch.nn.Parameter) and id(tensor) in index:
                    core.also_uses(index[id(tensor)])

        self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        self._handles.append(module.register_forward_hook(after, always_call=True))

    def _lend(self, view):
        for module in view.modules.values():
            index = {id(p): view.index[id(p)] for p in module._parameters.values() if p is not None}
            if index:
                self._borrowing.append(module)
                module._parameters = BorrowedParams(module._parameters, self._core, index)

    def remove(self):
        for handle in self._handles:
            handle.remove()
        for module in self._borrowing:
            module._parameters = dict(module._parameters)
        self._handles, self._borrowing = [], []

"""A torch.nn.Module as the C++ core sees it: named parameters, buffers, and a tree of modules."""

import torch
from torch import nn

from capstan import _C
from capstan.params import handle_of
from capstan.tensor_layers import slices, stored_name

SHORT_NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
LISTS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


class ModelView:
    """`core` is what the engine is made from; `index` maps id(parameter) to its place there.

    `travel`: id(parameter) -> dtype of its gradient on the wire, where it is not as configured.
    """

    def __init__(self, module, device, travel=None):
        self.modules = dict(module.named_modules())
        self.params, self.index, names = [], {}, []
        for name, param in module.named_parameters():
            self.index[id(param)] = len(names)
            self.params.append(param)
            names.append(name)
        self.names = names
        self.stored_names = [stored_name(name, param) for name, param in zip(names, self.params)]
        self.core = _C.Model()
        self.core.names = names
        self.core.params = self.params
        if travel:
            self.core.travel = [SHORT_NAMES.get(travel.get(id(p)), "") for p in self.params]
        self.core.buffers = list(module.buffers())
        self.core.tree = self._tree()
        self.core.stored_buffers = self._stored_buffers()
        self.core.aliases = {name: names[self.index[id(p)]]
                             for name, p in module.named_parameters(remove_duplicate=False)
                             if names[self.index[id(p)]] != name}
        self.core.slices = slices(zip(names, self.params))
        loose = [handle_of(p) for p in self.params]
        loose = [h if isinstance(h, _C.LooseShard) else None for h in loose]
        if any(h is not None for h in loose):
            self.core.loose = loose
            self.core.device = device

    def _stored_buffers(self):
        found, seen = [], set()
        for prefix, module in self.modules.items():
            for name, buffer in module._buffers.items():
                if buffer is None or name in module._non_persistent_buffers_set or id(buffer) in seen:
                    continue
                seen.add(id(buffer))
                found.append((f"{prefix}.{name}" if prefix else name, buffer))
        return found

    def _tree(self):
        place = {name: i for i, name in enumerate(self.modules)}
        tree = []
        for name, module in self.modules.items():
            parent = place[name.rpartition(".")[0]] if name else -1
            own = [self.index[id(p)] for p in module._parameters.values() if p is not None]
            kind = f"{type(module).__module__}.{type(module).__qualname__}"
            called = type(module).forward is not torch.nn.Module.forward or "forward" in vars(module)
            tree.append((name, kind, parent, isinstance(module, LISTS), called, own))
        return tree

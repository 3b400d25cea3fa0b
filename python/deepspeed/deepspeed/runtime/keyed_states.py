"""optimizer.state under the keys that scripts use: the model's parameters, and the flat parts of whole groups."""

import collections
import weakref

import torch

from capstan.params import EngineParam, handle_of

_GROUP = "capstan_group"  # of a tensor that flat_part() made


def flat_part(parts, group):
    """This rank's part of a group, one flat copy, which optimizer.state knows as a key."""
    flat = torch.cat(parts) if parts else torch.empty(0)
    setattr(flat, _GROUP, group)
    return flat


class KeyedStates(collections.defaultdict):
    """The states of an optimizer in an engine. What is found by the keys above is not stored under them."""

    def __init__(self, default_factory=dict, items=(), engine=None, optimizer=None):
        super().__init__(default_factory, items)
        self._engine = (lambda: None) if engine is None else weakref.ref(engine)
        self._optimizer = (lambda: None) if optimizer is None else weakref.ref(optimizer)

    def __contains__(self, key):
        return super().__contains__(key) or bool(self._found(key))

    def __missing__(self, key):
        found = self._found(key)
        return super().__missing__(key) if found is None else found

    def _found(self, key):
        """The state that belongs to another key; None for the optimizer's own, and for strangers."""
        engine, handle = self._engine(), handle_of(key)
        if engine is None or engine.core is None:
            return None
        if hasattr(key, _GROUP):
            return self._of_group(getattr(key, _GROUP))
        if not isinstance(handle, EngineParam) or handle.engine is not engine:
            return None
        piece = getattr(self._optimizer(), "capstan_pieces", {}).get(handle.index)
        if piece is key:
            return None
        return self._counters() if piece is None else self.get(piece, {})

    def _counters(self):
        """What a rank knows of a parameter that it has no piece of."""
        known = next((state for state in self.values() if state), {})
        return {name: value for name, value in known.items() if not torch.is_tensor(value) or value.dim() == 0}

    def _of_group(self, group):
        view = self._engine().view
        params = [view.params[view.names.index(name)] for name in self._engine().group_names[group]]
        states = [state for state in map(self.__getitem__, params) if state]
        tensors = {}
        for state in states:
            for name, value in state.items():
                if torch.is_tensor(value) and value.dim() > 0:
                    tensors.setdefault(name, []).append(value.flatten())
        counters = {name: value for name, value in (states[0] if states else {}).items() if name not in tensors}
        return {**counters, **{name: torch.cat(parts) for name, parts in tensors.items()}}

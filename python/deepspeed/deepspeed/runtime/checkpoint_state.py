"""What a script hands over with a checkpoint: JSON text, and tensors and arrays beside it that the text names.

Nothing is pickled. What JSON has no word for is an object with one key: {"$tuple": [...]}, {"$tensor": name}, ...
"""

import json
import math
import sys
from collections import Counter

import torch

from capstan.errors import ConfigError

COUNTERS = ("global_steps", "global_samples", "skipped_steps", "micro_steps")
TENSORS = "client"  # the column that holds them
_OURS = "deepspeed"
_SEQUENCES = {"$tuple": tuple, "$set": set}


def _refuse(value, where):
    raise ConfigError(f"a value of type {type(value).__name__} cannot be stored in a checkpoint", where,
                      "store numbers, text, lists, dicts, tensors and numpy arrays")


class Packer:
    """Values as JSON; `tensors` collects (name, tensor)."""

    def __init__(self):
        self.tensors = []

    def text(self, value, where):
        """Throws ConfigError that names the entry which cannot be stored."""
        return json.dumps(self._pack(value, where))

    def _pack(self, value, where):
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"$float": str(value)}
        if isinstance(value, torch.Tensor):
            return {"$tensor": self._keep(value.detach().cpu(), where)}
        numpy = sys.modules.get("numpy")  # who has a value of numpy's has imported it; others need none
        if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
            return self._pack_array(value, where, numpy)
        if isinstance(value, dict):
            return self._pack_dict(value, where)
        if type(value) is list:
            return self._pack_items(value, where)
        for mark, kind in _SEQUENCES.items():
            if isinstance(value, kind):
                return {mark: self._pack_items(value, where)}
        _refuse(value, where)

    def _pack_items(self, items, where):
        return [self._pack(item, f"{where}[{i}]") for i, item in enumerate(items)]

    def _pack_dict(self, value, where):
        plain = type(value) is not Counter and all(type(key) is str and not key.startswith("$") for key in value)
        items = [(key, self._pack(item, f"{where}, key {key!r}")) for key, item in value.items()]
        if plain:
            return dict(items)
        return {"$counter" if isinstance(value, Counter) else "$dict":
                [[self._pack(key, f"{where}, key {key!r}"), item] for key, item in items]}

    def _pack_array(self, value, where, numpy):
        try:
            tensor = torch.from_numpy(numpy.array(value))
        except TypeError:
            _refuse(value, where)
        return {"$array" if isinstance(value, numpy.ndarray) else "$scalar": self._keep(tensor, where)}

    def _keep(self, tensor, where):
        name = f"{len(self.tensors)}: {where}"
        self.tensors.append((name, tensor))
        return name


def unpack(text, read):
    """The value of a text; read(name) gives a tensor."""
    marks = {"$float": float, "$tensor": read, "$array": lambda name: read(name).numpy(),
             "$scalar": lambda name: read(name).numpy()[()], "$dict": dict, "$counter": lambda pairs: Counter(dict(pairs)),
             **_SEQUENCES}

    def build(pairs):
        if len(pairs) == 1 and pairs[0][0] in marks:
            mark, value = pairs[0]
            return marks[mark](value)
        return dict(pairs)

    return json.loads(text, object_pairs_hook=build)


def join(client_text, counters, groups):
    return json.dumps({_OURS: {"counters": counters, "groups": groups}, "client": json.loads(client_text)})


def split(text, stored):
    """(client_state, counters, groups) of a StoredCheckpoint's text."""
    state = unpack(text, lambda name: stored.read(TENSORS, name))
    if _OURS in state:
        return state["client"] or {}, state[_OURS]["counters"], state[_OURS]["groups"]
    state.update((name, stored.read(TENSORS, name)) for name in stored.names(TENSORS))  # another engine's
    return state, {}, []

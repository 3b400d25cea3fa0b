"""What a script hands over with a checkpoint: JSON text, and tensors and arrays beside it that the text names.

Nothing is pickled. What JSON has no word for is an object with one key: {"$tuple": [...]}, {"$tensor": name}, ...
"""

import json
import math
import sys
from collections import Counter

import torch

from capstan.errors import ConfigError

TENSORS = "client"  # the column that holds them
_OURS = "deepspeed"
_SEQUENCES = {"$tuple": tuple, "$set": set}


_LEVELS = 100  # of nesting; what reads it back has a stack too


def _refuse(value, where):
    raise ConfigError(f"a value of type {type(value).__name__} cannot be stored in a checkpoint", where,
                      "store numbers, text, lists, dicts, tensors and numpy arrays")


def _short(key):
    """Python writes no integer of more than a few thousand digits."""
    return hex(key)[:40] if type(key) is int and not -2**63 <= key < 2**63 else repr(key)[:200]


def _is_plain(value):
    """Whether JSON has the same word for it: by far the most values, and there may be millions."""
    kind = type(value)
    if kind is int:
        return -2**63 <= value < 2**63  # as readers of the file have them
    return value is None or kind is bool or (kind is str and value.isascii()) or (kind is float and math.isfinite(value))


class Packer:
    """Values as JSON; `tensors` collects (name, tensor)."""

    def __init__(self):
        self.tensors = []
        self._where = ""  # what is packed
        self._path = []  # from there to the value in hand: indices, and keys as (key,)
        self._open = set()  # ids of the containers on it

    def text(self, value, where):
        """Throws ConfigError that names the entry which cannot be stored."""
        self._where, self._path, self._open = where, [], set()
        return json.dumps(self._pack(value))

    def _place(self):
        """Only for messages and names: a path is written out for few of all values."""
        return self._where + "".join(f", key {_short(step[0])}" if isinstance(step, tuple) else f"[{step}]"
                                     for step in self._path)

    def _inside(self, step, value):
        if _is_plain(value):
            return value
        self._path.append(step)
        packed = self._pack(value)
        self._path.pop()
        return packed

    def _pack(self, value):
        if _is_plain(value):
            return value
        if type(value) is int:
            return {"$int": hex(value)}
        if type(value) is float:
            return {"$float": str(value)}
        if type(value) is str:
            return self._pack_text(value)
        if isinstance(value, torch.Tensor):
            return {"$tensor": self._keep(value.detach().cpu())}
        numpy = sys.modules.get("numpy")  # who has a value of numpy's has imported it; others need none
        if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
            return self._pack_array(value, numpy)
        return self._pack_container(value)

    def _pack_container(self, value):
        if id(value) in self._open:
            raise ConfigError("a value that contains itself cannot be stored in a checkpoint", self._place(), "remove it")
        if len(self._path) > _LEVELS:
            raise ConfigError(f"a value nested deeper than {_LEVELS} levels cannot be stored in a checkpoint",
                              f"{self._place()[:200]}...", "flatten it")
        self._open.add(id(value))
        packed = self._packed_items(value)
        self._open.remove(id(value))
        return packed

    def _packed_items(self, value):
        if isinstance(value, dict):
            return self._pack_dict(value)
        mark = next((mark for mark, kind in _SEQUENCES.items() if isinstance(value, kind)), None)
        if mark is None and type(value) is not list:
            _refuse(value, self._place())
        items = [self._inside(i, item) for i, item in enumerate(value)]
        return items if mark is None else {mark: items}

    def _pack_dict(self, value):
        plain = type(value) is not Counter and all(type(key) is str and not key.startswith("$") for key in value)
        items = [(self._inside((key,), key), self._inside((key,), item)) for key, item in value.items()]
        if plain:
            return dict(items)
        return {"$counter" if isinstance(value, Counter) else "$dict": items}

    def _pack_text(self, value):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ConfigError("a text with half of a surrogate pair cannot be stored in a checkpoint", self._place(),
                              "store its bytes in a tensor or numpy array") from None
        return value

    def _pack_array(self, value, numpy):
        try:
            tensor = torch.from_numpy(numpy.array(value))
        except TypeError:
            _refuse(value, self._place())
        return {"$array" if isinstance(value, numpy.ndarray) else "$scalar": self._keep(tensor)}

    def _keep(self, tensor):
        name = f"{len(self.tensors)}: {self._place()}"
        self.tensors.append((name, tensor))
        return name


def unpack(text, read):
    """The value of a text; read(name) gives a tensor."""
    marks = {"$float": float, "$int": lambda text: int(text, 16), "$tensor": read,
             "$array": lambda name: read(name).numpy(), "$scalar": lambda name: read(name).numpy()[()], "$dict": dict,
             "$counter": lambda pairs: Counter(dict(pairs)), **_SEQUENCES}

    def build(pairs):
        if len(pairs) == 1 and pairs[0][0] in marks:
            mark, value = pairs[0]
            return marks[mark](value)
        return dict(pairs)

    return json.loads(text, object_pairs_hook=build)


def join(client_text, counters, groups):
    """One text; the client's, which may be large, is not read again for it."""
    return f'{{"{_OURS}": {json.dumps({"counters": counters, "groups": groups})}, "client": {client_text}}}'


def split(text, stored):
    """(client_state, counters, groups) of a StoredCheckpoint's text."""
    state = unpack(text, lambda name: stored.read(TENSORS, name))
    if _OURS in state:
        return state["client"] or {}, state[_OURS]["counters"], state[_OURS]["groups"]
    state.update((name, stored.read(TENSORS, name)) for name in stored.names(TENSORS))  # another engine's
    return state, {}, []

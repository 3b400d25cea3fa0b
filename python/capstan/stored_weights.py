"""Whole fp32 weights of a checkpoint on disk, ours or DeepSpeed's, read one tensor at a time."""

import json
import math
import os
from collections import OrderedDict
from collections.abc import Mapping

import torch

from capstan import _C
from capstan.durable_file import durable_file
from capstan.errors import ConfigError

_UNITS = {"bytes": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


class StoredWeights(Mapping):
    """name -> tensor, read when it is asked for; tied names give one tensor each time. `tag`: by default the newest."""

    def __init__(self, folder, tag=None, exclude_frozen_parameters=False):
        self._stored = _C.StoredCheckpoint(str(folder), "" if tag is None else str(tag))
        self.folder, self.passed_over = self._stored.folder, self._stored.passed_over
        masters, left_out = set(self._stored.names("master")), set()
        if exclude_frozen_parameters:
            left_out = set(self._stored.frozen)
        self._column = {name: "master" if name in masters else "model"
                        for name in self._stored.names("model") if name not in left_out}
        self.aliases = {name: owner for name, owner in self._stored.aliases.items() if owner in self._column}

    def __getitem__(self, name):
        owner = self.aliases.get(name, name)
        value = self._stored.read(self._column[owner], owner)
        return value.float() if value.is_floating_point() else value

    def nbytes(self, name):
        """Of what reading it gives."""
        owner = self.aliases.get(name, name)
        dtype, shape = self._stored.spec(self._column[owner], owner)
        return math.prod(shape) * (torch.float.itemsize if dtype.is_floating_point else dtype.itemsize)

    def total(self, names):
        """Bytes of all of these, tied ones once."""
        return sum(self.nbytes(name) for name in names if name not in self.aliases)

    def several(self, names):
        """These at once; tied names share one tensor, as in the model."""
        read = {}
        for owner in dict.fromkeys(self.aliases.get(name, name) for name in names):
            read[owner] = self[owner]
        return OrderedDict((name, read[self.aliases.get(name, name)]) for name in names)

    def __iter__(self):
        """Tied names follow each other."""
        tied = {}
        for name, owner in self.aliases.items():
            tied.setdefault(owner, []).append(name)
        for owner in self._column:
            yield owner
            yield from tied.get(owner, ())

    def __len__(self):
        return len(self._column) + len(self.aliases)

    def files(self, limit):
        """Names of each file, cut where the next tensor would make it larger than `limit`; tied names stay together."""
        files, used = [[]], 0
        for name in self:
            size = 0 if name in self.aliases else self.nbytes(name)
            if files[-1] and used + size > limit:
                files.append([])
                used = 0
            files[-1].append(name)
            used += size
        return files


def write_file(tensors, path, safetensors):
    """A file of torch.save, or of the package safetensors. What was at `path` stays until the new one is complete."""
    if safetensors:
        try:
            from safetensors.torch import save_file
        except ImportError:
            raise ConfigError("safetensors files need the package safetensors, which is not installed", str(path),
                              "pip install safetensors, or write pytorch_model.bin") from None
    with durable_file(path) as part:
        if safetensors:
            save_file({name: value.clone() for name, value in tensors.items()}, part, metadata={"format": "pt"})
        else:
            torch.save(tensors, part)


def _size(count):
    unit = max((unit for unit in _UNITS if count >= _UNITS[unit]), key=_UNITS.get, default="bytes")
    return f"{count / _UNITS[unit]:.3g} {unit}"


def export_weights(weights, folder, *, max_file_bytes=5 * 10**9, safetensors=False, say=lambda line: None):
    """Writes `weights`, a StoredWeights, as pytorch_model.bin or model.safetensors, in several files with an index where
    one would be larger than `max_file_bytes` (None: always one). `say` hears of the checkpoint and of every file."""
    for line in weights.passed_over:
        say(f"warning: {line}")
    total = weights.total(weights)
    say(f"reading {weights.folder}: {len(weights)} tensors, {_size(total)} in fp32")
    os.makedirs(folder, exist_ok=True)
    stem, ending = ("model", ".safetensors") if safetensors else ("pytorch_model", ".bin")
    files = [list(weights)] if max_file_bytes is None else weights.files(max_file_bytes)
    where = {}
    for number, names in enumerate(files, 1):
        file = f"{stem}{ending}" if len(files) == 1 else f"{stem}-{number:05d}-of-{len(files):05d}{ending}"
        path = os.path.join(folder, file)
        write_file(weights.several(names), path, safetensors)
        say(f"wrote {path}: {len(names)} tensors, {_size(weights.total(names))}")
        where.update((name, file) for name in names)
    if len(files) > 1:
        path = os.path.join(folder, f"{stem}{ending}.index.json")
        with durable_file(path) as part, open(part, "w") as index:
            json.dump({"metadata": {"total_size": total}, "weight_map": where}, index, indent=2)
        say(f"wrote {path}: the list of which file has which tensor")

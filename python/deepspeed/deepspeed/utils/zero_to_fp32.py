#!/usr/bin/env python
"""Whole fp32 weights from a sharded checkpoint, as a script and as functions. Tensors are read one at a time."""

import argparse
import glob
import json
import math
import os
import re
import sys
from collections import OrderedDict
from collections.abc import Mapping

import torch

from capstan import _C
from capstan.durable_file import durable_file
from capstan.errors import ConfigError, Error

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def _numbers(text):
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", text)]


def get_checkpoint_files(checkpoint_dir, pattern):
    found = sorted(glob.glob(os.path.join(checkpoint_dir, pattern)), key=_numbers)
    if not found:
        raise FileNotFoundError(f"no file in '{checkpoint_dir}' is called {pattern}")
    return found


def get_optim_files(checkpoint_dir):
    return get_checkpoint_files(checkpoint_dir, "*_optim_states.pt")


def get_model_state_files(checkpoint_dir):
    return get_checkpoint_files(checkpoint_dir, "*_model_states.pt")


class _Weights(Mapping):
    """name -> tensor, read when it is asked for; tied names give one tensor each time."""

    def __init__(self, checkpoint_dir, tag, exclude_frozen_parameters):
        self._stored = _C.StoredCheckpoint(str(checkpoint_dir), "" if tag is None else str(tag))
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


def get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag=None, exclude_frozen_parameters=False,
                                             lazy_mode=False):
    """All weights of a checkpoint in fp32. With lazy_mode a mapping that reads a tensor when it is asked for."""
    weights = _Weights(checkpoint_dir, tag, exclude_frozen_parameters)
    if lazy_mode:
        return weights
    return weights.several(weights)


def load_state_dict_from_zero_checkpoint(model, checkpoint_dir, tag=None):
    """`model`, on the CPU, with the weights of a checkpoint."""
    model = model.cpu()
    model.load_state_dict(get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag), strict=False)
    return model


def _bytes(size):
    match = re.fullmatch(r"\s*(\d+)\s*([A-Za-z]*)\s*", str(size))
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError(f"max_shard_size {size!r} is not a size like 5GB")
    return int(match[1]) * _UNITS[match[2].upper()]


def _shards(weights, limit):
    """Names of each file, cut where the next tensor would make it larger than `limit`; tied names stay together."""
    files, used = [[]], 0
    for name in weights:
        size = 0 if name in weights.aliases else weights.nbytes(name)
        if files[-1] and used + size > limit:
            files.append([])
            used = 0
        files[-1].append(name)
        used += size
    return files


def _save(tensors, path, safe_serialization):
    if safe_serialization:
        try:
            from safetensors.torch import save_file
        except ImportError:
            raise ConfigError("safetensors files need the package safetensors, which is not installed",
                              "--safe_serialization", "pip install safetensors, or write pytorch_model.bin") from None
        save_file({name: value.clone() for name, value in tensors.items()}, path, metadata={"format": "pt"})
    else:
        torch.save(tensors, path)


def _size(count):
    unit = max((unit for unit in ("", "KB", "MB", "GB", "TB") if count >= _UNITS[unit]), key=_UNITS.get, default="")
    return f"{count / _UNITS[unit]:.3g} {unit or 'bytes'}"


def convert_zero_checkpoint_to_fp32_state_dict(checkpoint_dir, output_dir, max_shard_size="5GB",
                                               safe_serialization=False, tag=None, exclude_frozen_parameters=False):
    """Writes the weights as pytorch_model.bin or model.safetensors, in several files where they are larger."""
    limit = None if max_shard_size is None else _bytes(max_shard_size)
    _convert(_Weights(checkpoint_dir, tag, exclude_frozen_parameters), output_dir, limit, safe_serialization,
             say=lambda line: None)


def _convert(weights, output_dir, limit, safe_serialization, say):
    """`say` hears of the checkpoint and of every file that was written."""
    for line in weights.passed_over:
        say(f"warning: {line}")
    total = weights.total(weights)
    say(f"reading {weights.folder}: {len(weights)} tensors, {_size(total)} in fp32")
    os.makedirs(output_dir, exist_ok=True)
    stem, ending = ("model", ".safetensors") if safe_serialization else ("pytorch_model", ".bin")
    files = [list(weights)] if limit is None else _shards(weights, limit)
    where = {}
    for number, names in enumerate(files, 1):
        file = f"{stem}{ending}" if len(files) == 1 else f"{stem}-{number:05d}-of-{len(files):05d}{ending}"
        path = os.path.join(output_dir, file)
        with durable_file(path) as part:
            _save(weights.several(names), part, safe_serialization)
        say(f"wrote {path}: {len(names)} tensors, {_size(weights.total(names))}")
        where.update((name, file) for name in names)
    if len(files) > 1:
        path = os.path.join(output_dir, f"{stem}{ending}.index.json")
        with durable_file(path) as part, open(part, "w") as index:
            json.dump({"metadata": {"total_size": total}, "weight_map": where}, index, indent=2)
        say(f"wrote {path}: the list of which file has which tensor")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint_dir", help="the folder that holds the checkpoints, e.g. path/checkpoint-12")
    parser.add_argument("output_dir", help="the folder to write the weights to")
    parser.add_argument("--max_shard_size", default="5GB", help="largest size of one file")
    parser.add_argument("--safe_serialization", action="store_true", help="write safetensors files")
    parser.add_argument("-t", "--tag", default=None, help="which checkpoint, e.g. global_step1; default: the newest")
    parser.add_argument("--exclude_frozen_parameters", action="store_true", help="leave out frozen parameters")
    parser.add_argument("-d", "--debug", action="store_true", help="list the weights")
    args = parser.parse_args()
    limit = _bytes(args.max_shard_size)
    weights = _Weights(args.checkpoint_dir, args.tag, args.exclude_frozen_parameters)
    _convert(weights, args.output_dir, limit, args.safe_serialization, say=lambda line: print(line, flush=True))
    if args.debug:
        for name, value in weights.items():
            print(name, tuple(value.shape))


if __name__ == "__main__":
    try:
        main()
    except (Error, OSError, ValueError) as error:
        sys.exit(f"zero_to_fp32.py: {error}")

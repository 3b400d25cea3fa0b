"""The weights of one stage alone, for a model that was built on the meta device."""

import json
import os
from collections.abc import Mapping

import torch

from capstan.errors import ConfigError, IoError

_WHERE = "capstan.pipeline.split(weights)"


class _Files(Mapping):
    """name -> tensor of a folder with model.safetensors, or with several files and their index."""

    def __init__(self, folder):
        index = os.path.join(folder, "model.safetensors.index.json")
        if os.path.exists(index):
            with open(index) as file:
                self._file_of = json.load(file)["weight_map"]
        else:
            path = os.path.join(folder, "model.safetensors")
            with _opened(path) as file:
                self._file_of = dict.fromkeys(file.keys(), "model.safetensors")
        self._folder = folder

    def __getitem__(self, name):
        with _opened(os.path.join(self._folder, self._file_of[name])) as file:
            return file.get_tensor(name)

    def __iter__(self):
        return iter(self._file_of)

    def __len__(self):
        return len(self._file_of)


def _opened(path):
    from safetensors import SafetensorError, safe_open
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise IoError(f"weights cannot be read: {error}", path, "give a folder that save_pretrained() wrote") from None


def _owners(module):
    """Each parameter or buffer once: (its names, the places that have it)."""
    found = {}
    for prefix, each in module.named_modules():
        for table in (each._parameters, each._buffers):
            for name, tensor in table.items():
                if tensor is not None:
                    names, places = found.setdefault(id(tensor), ([], []))
                    names.append(f"{prefix}.{name}" if prefix else name)
                    places.append((table, name, tensor))
    return found.values()


def _rebuild_rotary(module):
    """Its tables are computed from the configuration when it is made, and are in no file."""
    for child in module.modules():
        for name, each in child.named_children():
            if hasattr(each, "inv_freq") and each.inv_freq.is_meta:
                made = type(each)(config=each.config)
                each._buffers.update(made._buffers)


def materialize(module, weights):
    """Gives a stage on the meta device its values. Without `weights` there must be nothing to give."""
    empty = [(names, places) for names, places in _owners(module) if places[0][2].is_meta]
    if not empty:
        if weights is not None:
            raise ConfigError("the model has its weights already", _WHERE,
                              "leave weights out, or build the model on the meta device")
        return
    if weights is None:
        raise ConfigError(f"'{empty[0][0][0]}' is on the meta device and has no values", _WHERE,
                          "give weights=FOLDER, with the model's safetensors")
    _rebuild_rotary(module)
    source = weights if isinstance(weights, Mapping) else _Files(os.fspath(weights))
    for names, places in empty:
        if not places[0][0][places[0][1]].is_meta:  # rebuilt
            continue
        value = _value(source, names, places[0][2])
        for table, name, _ in places:
            table[name] = value


def _value(source, names, like):
    found = next((name for name in names if name in source), None)
    if found is None:
        raise ConfigError(f"there is no tensor '{names[0]}' among the weights", _WHERE, "give the weights of this model")
    tensor = source[found]
    if tensor.shape != like.shape:
        raise ConfigError(f"'{found}' has the shape {list(tensor.shape)} among the weights, but {list(like.shape)} in the model", _WHERE, "give the weights of this model")
    tensor = tensor.to(like.dtype, copy=True)
    return torch.nn.Parameter(tensor, requires_grad=like.requires_grad) if isinstance(like, torch.nn.Parameter) else tensor

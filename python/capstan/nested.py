"""Nested tuples of tensors as the flat lists that travel between the stages of a pipeline, and back."""

import json

import torch

from capstan.errors import ConfigError

_PLAIN = (bool, int, float, str, type(None))


def pack(value, where):
    """A tensor alone as [it]; anything else as [its shape in words, tensors...].

    Tuples, lists and dicts hold tensors and plain values: numbers, text, None.
    """
    if isinstance(value, torch.Tensor):
        return [value]
    tensors = []
    text = json.dumps(_describe(value, tensors, where), separators=(",", ":"))
    words = torch.frombuffer(bytearray(text, "utf-8"), dtype=torch.uint8)
    return [words, *(tensors or [torch.empty(0)])]  # never one alone, which would be a tensor


def unpack(tensors):
    """What pack() was given."""
    if len(tensors) == 1:
        return tensors[0]
    return _build(json.loads(bytes(tensors[0].tolist()).decode()), tensors[1:])


def _describe(value, tensors, where):
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return {"t": len(tensors) - 1}
    if isinstance(value, _PLAIN):
        return {"v": value}
    if isinstance(value, (tuple, list)):
        return {"tuple" if isinstance(value, tuple) else "list": [_describe(each, tensors, where) for each in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _describe(each, tensors, where) for key, each in value.items()}}
    raise ConfigError(f"a {type(value).__name__} cannot travel to another stage", where,
                      "use tensors and plain values, alone or in tuples, lists and dicts")


def _build(words, tensors):
    (kind, value), = words.items()
    if kind == "t":
        return tensors[value]
    if kind == "v":
        return value
    if kind == "dict":
        return {key: _build(each, tensors) for key, each in value.items()}
    made = [_build(each, tensors) for each in value]
    return tuple(made) if kind == "tuple" else made


class _Fresh(torch.autograd.Function):
    """The same values in the same memory, but no leaf: layers may change them in place."""

    @staticmethod
    def forward(ctx, x):
        return x.data

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def fresh(tensors):
    return [_Fresh.apply(x) if x.requires_grad else x for x in tensors]

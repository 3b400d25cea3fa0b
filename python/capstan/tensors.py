"""Tensors inside the arguments and results of a forward: nested tuples, lists, dicts, dataclasses."""

import dataclasses

import torch


def visit(value, found):
    """Appends every tensor inside `value` to the list `found`, in a fixed order."""
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, dict):
        for item in value.values():
            visit(item, found)
    elif isinstance(value, (tuple, list)):
        for item in value:
            visit(item, found)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            visit(getattr(value, field.name, None), found)


def replace(value, change):
    """`value` with every tensor t inside it replaced by change(t); what changes nothing stays the same object."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        changed = {key: replace(item, change) for key, item in value.items()}
        if all(changed[key] is item for key, item in value.items()):
            return value
        if type(value) is dict:
            return changed
        copy = value.copy()
        copy.update(changed)
        return copy
    if isinstance(value, (tuple, list)):
        items = [replace(item, change) for item in value]
        if all(new is old for new, old in zip(items, value)):
            return value
        if hasattr(value, "_fields"):  # a named tuple
            return type(value)(*items)
        return type(value)(items)
    return value


def cast(value, dtype):
    """`value` with its floating-point tensors in `dtype`."""
    return replace(value, lambda t: t.to(dtype) if t.is_floating_point() else t)

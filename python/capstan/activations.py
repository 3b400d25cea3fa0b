"""Activations that a library writes as a formula of many operations, computed by torch's one function instead."""

import functools
import sys

import torch

# Python's formula keeps four tensors for backward where this keeps one. A partial of torch's own function can be copied,
# pickled and loaded where capstan is not installed.
TANH_GELU = functools.partial(torch.nn.functional.gelu, approximate="tanh")

_LIBRARY = "transformers.activations"
_FORMULAS = ("NewGELUActivation", "FastGELUActivation", "AccurateGELUActivation")


def _is_formula(module, classes):
    """Whether the module computes as its class was written: neither its user nor another package changed that."""
    kind = type(module)
    return (kind in classes and kind.forward.__module__ == _LIBRARY and "forward" not in vars(module)
            and not (module._forward_hooks or module._forward_pre_hooks
                     or module._backward_hooks or module._backward_pre_hooks))


def fuse(model):
    """Lets every tanh-GELU of Hugging Face's in the model be torch's function; the modules, for restore()."""
    library = sys.modules.get(_LIBRARY)
    classes = [vars(library)[name] for name in _FORMULAS if name in vars(library)] if library else []
    found = [module for module in model.modules() if _is_formula(module, classes)]
    for module in found:
        module.forward = TANH_GELU
    return found


def restore(modules):
    for module in modules:
        if vars(module).get("forward") is TANH_GELU:
            del module.forward

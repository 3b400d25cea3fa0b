"""Names of dtypes in the configuration; which gradients travel in the dtype of autocast."""

import importlib

import torch

PARAM_COMM_DTYPE_ATTR_NAME = "comm_dtype"
LOWER_PRECISION_SAFE_MODULES = [torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d]
_NAMES = {"fp32": torch.float32, "float32": torch.float32, "torch.float32": torch.float32, "float": torch.float32,
          "fp16": torch.float16, "float16": torch.float16, "torch.float16": torch.float16, "half": torch.float16,
          "bf16": torch.bfloat16, "bfloat16": torch.bfloat16, "torch.bfloat16": torch.bfloat16}


def dtype_of(name):
    """None for None or "auto"."""
    if name is None or name == "auto" or isinstance(name, torch.dtype):
        return None if name == "auto" else name
    return _NAMES[name.lower()]


def has_comm_dtype(param):
    return hasattr(param, PARAM_COMM_DTYPE_ATTR_NAME)


def get_comm_dtype(param):
    return getattr(param, PARAM_COMM_DTYPE_ATTR_NAME, param.dtype)


def set_comm_dtype(param, dtype):
    setattr(param, PARAM_COMM_DTYPE_ATTR_NAME, dtype)


def is_autocast_initialized():
    return False


def _safe_classes(names):
    if names is None:
        return set(LOWER_PRECISION_SAFE_MODULES)
    found = set()
    for name in names:
        module, _, kind = name.rpartition(".")
        found.add(getattr(importlib.import_module(module), kind))
    return found


def mark_comm_dtypes(model, dtype, class_names):
    """Gradients of modules of exactly these classes travel in `dtype`. Returns id(parameter) -> dtype."""
    safe, travel = _safe_classes(class_names), {}
    for module in model.modules():
        for param in module.parameters(recurse=False) if type(module) in safe else ():
            set_comm_dtype(param, dtype)
            travel[id(param)] = dtype
    return travel

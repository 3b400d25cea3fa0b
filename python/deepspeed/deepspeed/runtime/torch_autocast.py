"""Names of dtypes in the configuration, and the dtype that gradients travel in."""

import torch

PARAM_COMM_DTYPE_ATTR_NAME = "comm_dtype"
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

"""Which accelerator this process uses: DS_ACCELERATOR, else CUDA where there is a GPU, else the CPU."""

import functools
import os

import torch

SUPPORTED_ACCELERATOR_LIST = ["cuda", "cpu"]
_chosen = []


@functools.lru_cache(maxsize=None)
def _detected():
    name = os.environ.get("DS_ACCELERATOR") or ("cuda" if torch.cuda.is_available() else "cpu")
    if name not in SUPPORTED_ACCELERATOR_LIST:
        raise ValueError(f"DS_ACCELERATOR is {name!r}: choose from {', '.join(SUPPORTED_ACCELERATOR_LIST)}")
    if name == "cuda":
        from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator
        return CUDA_Accelerator()
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
    return CPU_Accelerator()


def get_accelerator():
    return _chosen[-1] if _chosen else _detected()


def set_accelerator(accelerator):
    _chosen[:] = [accelerator]
    return accelerator


def is_current_accelerator_supported():
    return get_accelerator().device_name() in SUPPORTED_ACCELERATOR_LIST

"""Moving an engine's state away from the device and back."""

import torch

from capstan.engine import STATE_KINDS
from deepspeed.utils import logger


def _name(value):
    return str(getattr(value, "value", value))


def offload(engine, include, device):
    """The copies have ended when this returns, whatever `non_blocking` says, and are always page-locked. There is no
    lasting contiguous_grad_buffer: its room is made by each step."""
    if _name(device) == "nvme":
        raise ValueError("NVMe offload is not supported for offload_states")
    if _name(device) == "none":
        logger.warning("offload_states: nothing moves to the device 'none'")
        return
    kinds = STATE_KINDS if include is None else [_name(kind) for kind in include]
    engine.offload_to_host([kind for kind in kinds if kind != "contiguous_grad_buffer"])


def get_state_devices(engine, state):
    """Where a kind of state lies."""
    away = _name(state) in engine.core.offloaded_states
    return {torch.device("cpu") if away else torch.device(engine.device)}

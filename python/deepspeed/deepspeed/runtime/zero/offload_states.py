"""Moving an engine's state away from the device and back."""

import torch

from deepspeed.utils import logger


def _name(value):
    return str(getattr(value, "value", value))


def kinds_to_move(include, device):
    """The kinds by our names; None: all of them. There is no lasting contiguous_grad_buffer: each step makes its room."""
    if _name(device) == "nvme":
        raise ValueError("NVMe offload is not supported for offload_states")
    if _name(device) == "none":
        logger.warning("offload_states cannot move anything to the device 'none'")
        return []
    return include and [_name(kind) for kind in include if _name(kind) != "contiguous_grad_buffer"]


def get_state_devices(engine, state):
    """Where a kind of state lies."""
    away = _name(state) in engine.core.offloaded_states
    return {torch.device("cpu") if away else torch.device(engine.device)}

"""Moving an engine's state away from the device and back."""

import torch

from capstan.errors import NotAvailable


def offload(engine, include, device):
    """On the CPU there is nowhere to move to; on a GPU the feature comes later."""
    if str(getattr(device, "value", device)) == "nvme":
        raise ValueError("NVMe offload is not supported for offload_states")
    if engine.device.type != "cpu":
        raise NotAvailable("offload_states on a GPU")


def get_state_devices(engine, state):
    """Where a kind of state lies."""
    return {torch.device(engine.device)}

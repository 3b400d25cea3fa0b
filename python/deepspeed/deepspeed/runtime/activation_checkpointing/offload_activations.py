"""Activations kept in host memory between forward and backward."""

from torch.autograd.graph import save_on_cpu


def offload_activations(pin_memory=False):
    """A context: what autograd saves inside it waits in host memory."""
    return save_on_cpu(pin_memory=pin_memory)

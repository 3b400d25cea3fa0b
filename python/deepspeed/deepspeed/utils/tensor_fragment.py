"""Full-precision values, gradients and optimizer states of parameters, whole or this rank's part."""

import torch

from capstan.optimizers import KernelOptimizer
from capstan.params import EngineParam, handle_of


def _managed(param):
    handle = handle_of(param)
    return handle if isinstance(handle, EngineParam) and handle.core is not None else None


def _trained(param):
    handle = _managed(param)
    return handle if handle is not None and param.requires_grad and handle.engine.basic_optimizer is not None else None


def _piece_state(handle, key):
    """Of a client's optimizer: (this rank's state tensor or None)."""
    pieces = handle.engine.basic_optimizer.capstan_pieces
    piece = pieces.get(handle.index)
    state = handle.engine.basic_optimizer.state.get(piece, {}) if piece is not None else {}
    return state.get(key)


def safe_get_full_fp32_param(param):
    handle = _trained(param)
    return None if handle is None else handle.core.read(handle.index, "master").float()


def safe_set_full_fp32_param(param, value):
    handle = _trained(param)
    if handle is not None:
        handle.core.write(handle.index, "master", value)


def safe_get_full_optimizer_state(param, optim_state_key):
    handle = _trained(param)
    if handle is None:
        return None
    if isinstance(handle.engine.basic_optimizer, KernelOptimizer):
        return handle.core.read(handle.index, optim_state_key).float()
    state = _piece_state(handle, optim_state_key)
    if state is None:
        state = torch.empty(0, dtype=torch.float32)
    return handle.core.assemble(handle.index, state)


def safe_set_full_optimizer_state(param, value, optim_state_key):
    handle = _trained(param)
    if handle is None:
        return
    if isinstance(handle.engine.basic_optimizer, KernelOptimizer):
        handle.core.write(handle.index, optim_state_key, value)
        return
    state = _piece_state(handle, optim_state_key)
    begin, end = handle.core.owned_range(handle.index)
    if state is not None and end > begin:
        state.copy_(value.reshape(-1)[begin:end].view(state.shape))


def safe_get_full_grad(param):
    if param.grad is not None:
        return param.grad
    handle = _trained(param)
    return None if handle is None else handle.core.read(handle.index, "gradient")


def safe_set_full_grad(param, value):
    handle = _trained(param)
    if param.grad is not None:
        param.grad.copy_(value)
    if handle is not None:
        handle.core.write(handle.index, "gradient", value)


def safe_update_full_grad_vectorized(params, update):
    """update(gradient, parameter) -> the new gradient, for each parameter that has one."""
    for param in params:
        grad = safe_get_full_grad(param)
        if grad is not None:
            changed = update(grad, param)
            safe_set_full_grad(param, grad if changed is None else changed)


def _local(param):
    handle = _trained(param)
    assert handle is None or handle.engine.zero_optimization_stage() == 3, "local values exist at ZeRO stage 3 only"
    return handle


def safe_get_local_fp32_param(param):
    handle = _local(param)
    return None if handle is None else handle.core.local(handle.index, "master")


def safe_set_local_fp32_param(param, value):
    handle = _local(param)
    if handle is not None:
        handle.core.write_local(handle.index, "master", value)


def safe_get_local_optimizer_state(param, optim_state_key):
    handle = _local(param)
    if handle is None:
        return None
    if isinstance(handle.engine.basic_optimizer, KernelOptimizer):
        return handle.core.local(handle.index, optim_state_key)
    return _piece_state(handle, optim_state_key)


def safe_set_local_optimizer_state(param, value, optim_state_key):
    state = safe_get_local_optimizer_state(param, optim_state_key)
    if state is not None:
        state.copy_(value.view(state.shape))


def safe_get_local_grad(param):
    handle = _local(param)
    return None if handle is None else handle.core.local_gradient(handle.index)


def safe_set_local_grad(param, value):
    handle = _local(param)
    if handle is not None:
        handle.core.write_local(handle.index, "gradient", value)

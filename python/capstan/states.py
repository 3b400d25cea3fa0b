"""Full-precision values, gradients and optimizer states of parameters, whole or this rank's elements of them.

`name` says which: "master" (the fp32 copy that the optimizer updates), "gradient" (averaged over the ranks and unscaled,
between backward and step), or a state under the optimizer's own name for it, such as "exp_avg".
"""

import torch

from capstan.errors import ConfigError
from capstan.optimizers import KernelOptimizer
from capstan.params import EngineParam, handle_of


def trained_handle(param):
    """What knows the states of this parameter; None if no engine trains it."""
    handle = handle_of(param)
    if not isinstance(handle, EngineParam) or handle.core is None or not param.requires_grad:
        return None
    return handle if handle.engine.has_optimizer else None


def _handle(param, where):
    handle = trained_handle(param)
    if handle is None:
        raise ConfigError("the parameter has no such state: no open engine trains it", where,
                          "pass a parameter of engine.module that requires gradients, while the engine is open and has an optimizer")
    return handle


def _is_torchs(handle, name):
    """Whether the state lies in an optimizer of torch: the engine has the masters and gradients, and its kernels' states."""
    optimizer = handle.engine.given_optimizer
    return name not in ("master", "gradient") and optimizer is not None and not isinstance(optimizer, KernelOptimizer)


def _piece(handle, name):
    """This rank's elements of a state of torch's optimizer; None where it has none of them."""
    optimizer = handle.engine.given_optimizer
    piece = optimizer.capstan_pieces.get(handle.index)
    return None if piece is None else optimizer.state.get(piece, {}).get(name)


def _set_piece(handle, name, values):
    mine = _piece(handle, name)
    if mine is not None and values.numel() > 0:
        mine.copy_(values.view(mine.shape))


def read_state(param, name):
    """The whole tensor, in fp32, on every rank. Collective."""
    handle = _handle(param, "read_state()")
    if not _is_torchs(handle, name):
        value = handle.core.read(handle.index, name)
        return value if name == "gradient" else value.float()
    mine = _piece(handle, name)
    return handle.core.assemble(handle.index, torch.empty(0, dtype=torch.float32) if mine is None else mine)


def write_state(param, name, value):
    """Sets the whole tensor: every rank gives the same values. A master sets the parameter too. Collective."""
    handle = _handle(param, "write_state()")
    if not _is_torchs(handle, name):
        handle.core.write(handle.index, name, value)
        return
    begin, end = handle.core.owned_range(handle.index)
    _set_piece(handle, name, value.reshape(-1)[begin:end])


def read_local_state(param, name):
    """The elements that this rank updates, 1-D; None for a state that torch's optimizer does not have here."""
    handle = _handle(param, "read_local_state()")
    if _is_torchs(handle, name):
        return _piece(handle, name)
    return handle.core.local(handle.index, name)


def write_local_state(param, name, value):
    """Sets the elements that this rank updates. Of a master, all ranks write theirs: the call is collective."""
    handle = _handle(param, "write_local_state()")
    if _is_torchs(handle, name):
        _set_piece(handle, name, value)
    else:
        handle.core.write_local(handle.index, name, value)

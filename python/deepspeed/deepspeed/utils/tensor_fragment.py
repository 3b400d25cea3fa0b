"""Full-precision values, gradients and optimizer states of parameters under DeepSpeed's names: None if nobody trains them."""

from capstan import states


def _whole(param):
    return states.trained_handle(param) is not None


def _local(param):
    handle = states.trained_handle(param)
    assert handle is None or handle.sharded, "local values exist at ZeRO stage 3 only"
    return handle is not None


def safe_get_full_fp32_param(param):
    return states.read_state(param, "master") if _whole(param) else None


def safe_set_full_fp32_param(param, value):
    if _whole(param):
        states.write_state(param, "master", value)


def safe_get_full_optimizer_state(param, optim_state_key):
    return states.read_state(param, optim_state_key) if _whole(param) else None


def safe_set_full_optimizer_state(param, value, optim_state_key):
    if _whole(param):
        states.write_state(param, optim_state_key, value)


def safe_get_full_grad(param):
    if param.grad is not None:
        return param.grad
    return states.read_state(param, "gradient") if _whole(param) else None


def safe_set_full_grad(param, value):
    if param.grad is not None:
        param.grad.copy_(value)
    if _whole(param):
        states.write_state(param, "gradient", value)


def safe_update_full_grad_vectorized(params, update):
    """update(gradient, parameter) -> the new gradient, for each parameter that has one."""
    for param in params:
        grad = safe_get_full_grad(param)
        if grad is not None:
            changed = update(grad, param)
            safe_set_full_grad(param, grad if changed is None else changed)


def safe_get_local_fp32_param(param):
    return states.read_local_state(param, "master") if _local(param) else None


def safe_set_local_fp32_param(param, value):
    if _local(param):
        states.write_local_state(param, "master", value)


def safe_get_local_optimizer_state(param, optim_state_key):
    return states.read_local_state(param, optim_state_key) if _local(param) else None


def safe_set_local_optimizer_state(param, value, optim_state_key):
    if _local(param):
        states.write_local_state(param, optim_state_key, value)


def safe_get_local_grad(param):
    return states.read_local_state(param, "gradient") if _local(param) else None


def safe_set_local_grad(param, value):
    if _local(param):
        states.write_local_state(param, "gradient", value)

"""Questions about the torch that is installed."""

import torch
from packaging import version


def required_torch_version(min_version=None, max_version=None):
    assert min_version or max_version, "give min_version, max_version or both"
    here = version.parse(torch.__version__.split("+")[0])
    if min_version and here < version.parse(str(min_version)):
        return False
    return not (max_version and here > version.parse(str(max_version)))


def register_grad_hook(param, hook):
    return param.register_post_accumulate_grad_hook(hook)


def jit_script_compat(function):
    return function


def noop_context(*args, **kwargs):
    import contextlib
    return contextlib.nullcontext()

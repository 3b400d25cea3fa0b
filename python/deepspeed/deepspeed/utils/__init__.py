"""Logging, groups, and access to sharded state."""

from deepspeed.runtime.dataloader import RepeatingLoader  # noqa: F401
from deepspeed.utils import groups, logging  # noqa: F401
from deepspeed.utils.init_on_device import OnDevice  # noqa: F401
from deepspeed.utils.logging import (LoggerFactory, log_dist, log_dist_once, logger,  # noqa: F401
                                     print_configuration, set_log_level_from_string)
from deepspeed.utils.tensor_fragment import (safe_get_full_fp32_param, safe_get_full_grad,  # noqa: F401
                                             safe_get_full_optimizer_state, safe_get_local_fp32_param,
                                             safe_get_local_grad, safe_get_local_optimizer_state,
                                             safe_set_full_fp32_param, safe_set_full_grad,
                                             safe_set_full_optimizer_state, safe_set_local_fp32_param,
                                             safe_set_local_grad, safe_set_local_optimizer_state,
                                             safe_update_full_grad_vectorized)
from deepspeed.utils.timer import SynchronizedWallClockTimer  # noqa: F401
from deepspeed.utils.z3_leaf_module import (get_z3_leaf_modules, set_z3_leaf_module, set_z3_leaf_modules,  # noqa: F401
                                            set_z3_leaf_modules_by_name, set_z3_leaf_modules_by_suffix,
                                            unset_z3_leaf_modules, z3_leaf_module, z3_leaf_parameter)


def is_initialized():
    import torch.distributed as dist
    return dist.is_initialized()


def instrument_w_nvtx(function):
    return function

"""Collectives of torch.distributed with DeepSpeed's extra keywords, and the start of the ranks."""

import functools
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp, group

import capstan
from capstan.process_group import set_rank_variables
from deepspeed.comm.accelerate_count import tell_backend
from deepspeed.comm.utils import get_local_rank_from_launcher
from deepspeed.utils.comms_logging import CommsLogger
from deepspeed.utils.logging import logger

default_pg_timeout = timedelta(minutes=int(os.environ.get("DEEPSPEED_TIMEOUT", "10")))
comms_logger = CommsLogger()
cdb = None  # a caller's own backend object; torch.distributed needs none
_EXTRA = ("prof", "log_name", "debug")


def _logged(name):
    """torch.distributed's function of this name, timed for the communication log where that is on."""
    function = getattr(dist, name)

    @functools.wraps(function)
    def call(*args, **kwargs):
        extra = {key: kwargs.pop(key) for key in _EXTRA if key in kwargs}
        wanted = comms_logger.enabled and (comms_logger.prof_all or extra.get("prof")
                                           or name in comms_logger.prof_ops)
        if not wanted:
            return function(*args, **kwargs)
        begin = time.time()
        result = function(*args, **kwargs)
        if result is not None and hasattr(result, "wait") and not kwargs.get("async_op"):
            result.wait()
        tensors = [t for t in args if isinstance(t, torch.Tensor)]
        size = sum(t.numel() * t.element_size() for t in tensors[:1])
        comms_logger.append(name, extra.get("log_name", name), (time.time() - begin) * 1000, size)
        return result

    return call


broadcast = _logged("broadcast")
all_reduce = _logged("all_reduce")
reduce = _logged("reduce")
reduce_scatter = _logged("reduce_scatter")
reduce_scatter_tensor = _logged("reduce_scatter_tensor")
all_gather = _logged("all_gather")
all_gather_into_tensor = _logged("all_gather_into_tensor")
all_to_all = _logged("all_to_all")
all_to_all_single = _logged("all_to_all_single")
gather = _logged("gather")
scatter = _logged("scatter")
send = _logged("send")
recv = _logged("recv")
isend = _logged("isend")
irecv = _logged("irecv")
broadcast_object_list = dist.broadcast_object_list
all_gather_object = dist.all_gather_object
monitored_barrier = dist.monitored_barrier
allgather_fn = all_gather_into_tensor
reduce_scatter_fn = reduce_scatter_tensor


def barrier(group=None, async_op=False, device_ids=None, prof=False, log_name="barrier", debug=None):
    return dist.barrier(group=group, async_op=async_op, device_ids=device_ids)


def inference_all_reduce(tensor, op=ReduceOp.SUM, group=None, async_op=False):
    return dist.all_reduce(tensor, op=op, group=group, async_op=async_op)


def all_reduce_coalesced(tensors, op=ReduceOp.SUM, group=None, async_op=False, **extra):
    works = [dist.all_reduce(t, op=op, group=group, async_op=True) for t in tensors]
    return works if async_op else [work.wait() for work in works] and None


def all_gather_coalesced(output_tensors, input_tensors, group=None, async_op=False, **extra):
    works = [dist.all_gather_into_tensor(out, mine, group=group, async_op=True)
             for out, mine in zip(output_tensors, input_tensors)]
    return works if async_op else [work.wait() for work in works] and None


def has_all_gather_into_tensor():
    return True


def has_reduce_scatter_tensor():
    return True


def has_coalescing_manager():
    return True


def has_all_reduce_coalesced():
    return True


def is_available():
    return dist.is_available()


def is_initialized():
    if dist.is_initialized():
        tell_backend()
    return dist.is_initialized()


def get_rank(group=None):
    return dist.get_rank(group)


def get_world_size(group=None):
    return dist.get_world_size(group)


def get_local_rank():
    return get_local_rank_from_launcher()


def get_global_rank(group=None, group_rank=0):
    return group_rank if group is None else dist.get_global_rank(group, group_rank)


def get_all_ranks_from_group(group=None):
    return dist.get_process_group_ranks(dist.group.WORLD if group is None else group)


def get_world_group():
    return dist.group.WORLD


def new_group(ranks, **options):
    return dist.new_group(ranks, **options)


def destroy_process_group(group=None):
    dist.destroy_process_group(group)


def get_backend(group=None):
    return dist.get_backend(group)


def initialize_mesh_device(mesh_shape, mesh_dim_names):
    from deepspeed.accelerator import get_accelerator
    return dist.init_device_mesh(get_accelerator().device_name(), mesh_shape, mesh_dim_names=mesh_dim_names)


def configure(deepspeed_config=None, enabled=None, prof_all=None, prof_ops=None, verbose=None, debug=None):
    """Turns the communication log on as a configuration or these arguments say."""
    if deepspeed_config is not None:
        comms_logger.configure(deepspeed_config.comms_config)
    for name, value in (("enabled", enabled), ("prof_all", prof_all), ("prof_ops", prof_ops), ("verbose", verbose),
                        ("debug", debug)):
        if value is not None:
            setattr(comms_logger, name, value)


def start_profiling_comms():
    comms_logger.prof_all = True


def stop_profiling_comms():
    comms_logger.prof_all = False


def log_summary(show_straggler=False, return_dict=False, **extra):
    barrier()
    summary = comms_logger.log_all(print_log=get_rank() == 0, show_straggler=show_straggler)
    barrier()
    return summary if return_dict else None


def init_distributed(dist_backend=None, auto_mpi_discovery=True, distributed_port=29500, verbose=True,
                     timeout=default_pg_timeout, init_method=None, dist_init_required=None, config=None, rank=-1,
                     world_size=-1):
    """Joins the ranks of the job; adopts a torch.distributed that is initialised already."""
    configure(deepspeed_config=config)
    if dist.is_initialized():
        return
    assert dist_init_required is not False, "Distributed package is not initialized, and dist_init_required is False"
    if auto_mpi_discovery:
        set_rank_variables(distributed_port)
        if os.environ.get("WORLD_SIZE", "1") != "1" or rank >= 0:
            os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
            os.environ.setdefault("MASTER_PORT", str(distributed_port))
    if dist_backend is None:
        from deepspeed.accelerator import get_accelerator
        dist_backend = get_accelerator().communication_backend_name()
    if verbose:
        logger.info(f"Initializing TorchBackend in DeepSpeed with backend {dist_backend}")
    capstan.init_distributed(dist_backend, timeout=timeout, init_method=init_method, rank=rank, world_size=world_size,
                             discover=False)
    tell_backend()

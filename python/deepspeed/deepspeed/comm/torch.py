"""The class that other packages look for; every call goes straight to torch.distributed."""

import torch.distributed as dist

from deepspeed.comm import comm


class TorchBackend:

    def __init__(self, backend=None, timeout=None, init_method=None, rank=-1, world_size=-1, name="torch"):
        self.name = name
        comm.init_distributed(backend, timeout=timeout or comm.default_pg_timeout, init_method=init_method, rank=rank,
                              world_size=world_size)

    def is_initialized(self):
        return dist.is_initialized()

    def __getattr__(self, name):
        return getattr(comm, name)

"""torch.distributed under DeepSpeed's names; extra keywords for its logger are accepted everywhere."""

from deepspeed.comm.comm import *  # noqa: F401,F403
from deepspeed.comm.comm import ReduceOp, group  # noqa: F401
from deepspeed.comm.utils import get_local_rank_from_launcher, get_world_rank_from_launcher  # noqa: F401
from deepspeed.comm.utils import get_world_size_from_launcher  # noqa: F401

"""Runs a function on several ranks: processes forked from this one, over Gloo on the CPU."""

import contextlib
import datetime
import functools
import os
import pickle
import tempfile
import traceback
from pathlib import Path

import torch
import torch._dynamo  # noqa: F401  optimizers import it at their first step: once here, not in every rank
import torch.distributed as dist

TIMEOUT_S = 120  # of a collective: a rank that fails must not hold its peers for long


def _one(rank, world, folder, function, args):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world,
                            timeout=datetime.timedelta(seconds=TIMEOUT_S))
    result = function(*args)
    (folder / f"result{rank}").write_bytes(pickle.dumps(result))
    with contextlib.suppress(RuntimeError):  # of a group that a test broke
        dist.barrier()
        dist.destroy_process_group()


def run(world, function, *args):
    """What function(*args) returned on each rank. A rank that raises fails the caller with its traceback."""
    with tempfile.TemporaryDirectory() as name:
        folder, children = Path(name), []
        for rank in range(world):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    _one(rank, world, folder, function, args)
                    code = 0
                except BaseException:
                    (folder / f"error{rank}").write_text(traceback.format_exc())
                finally:
                    os._exit(code)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        errors = [path.read_text() for path in sorted(folder.glob("error*"))]
        assert not any(codes), f"exit codes {codes}\n" + "\n".join(errors)
        return [pickle.loads((folder / f"result{rank}").read_bytes()) for rank in range(world)]


def alone(test):
    """Runs a test on a rank of its own: the group of ranks that an engine makes stays with its process."""

    @functools.wraps(test)
    def forked(*args, **kwargs):
        run(1, functools.partial(test, *args, **kwargs))

    return forked

"""Ranks that mpirun or srun started find each other through either package, without a launcher of ours."""

import os
import socket
import subprocess
import sys

import pytest

JOIN = {"capstan": "import capstan; capstan.init_distributed()",
        "deepspeed": "import deepspeed; deepspeed.init_distributed()"}
SHOW = ("; import torch.distributed as dist; "
        "print(dist.get_rank(), dist.get_world_size(), sorted(dist.get_process_group_ranks(dist.group.WORLD)))")
OF_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "OMPI_", "PMI", "SLURM_", "CAPSTAN_LAUNCHER")


def mpi(rank):
    return {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}


def slurm(rank):
    return {"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": str(rank), "SLURM_NODEID": "0",
            "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_NODELIST": "localhost"}


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return str(taken.getsockname()[1])


def started(code, variables):
    clean = {key: value for key, value in os.environ.items() if not key.startswith(OF_LAUNCHERS)}
    return subprocess.Popen([sys.executable, "-c", code], env={**clean, **variables}, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT)


@pytest.mark.parametrize("launcher", [mpi, slurm])
@pytest.mark.parametrize("package", JOIN)
def test_ranks_of_another_launcher_join_one_world(package, launcher):
    port = {"MASTER_PORT": free_port()}
    ranks = [started(JOIN[package] + SHOW, {**launcher(rank), **port}) for rank in range(2)]
    told = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert all(f"{rank} 2 [0, 1]" in text for rank, text in enumerate(told)), "\n".join(told)


@pytest.mark.parametrize("package", JOIN)
def test_a_batch_script_of_slurm_is_a_world_of_one(package):
    """It has the number of tasks of the job, but nobody has started them."""
    alone = started(JOIN[package] + SHOW, {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"})
    told = alone.communicate(timeout=300)[0]
    assert "0 1 [0]" in told, told

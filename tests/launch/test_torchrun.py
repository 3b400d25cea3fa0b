"""Programs that torchrun or torch.distributed.launch started find their rank without flags."""

import socket
import subprocess

import pytest

from launching import BIN, PYTHON, clean_environment, parse_facts

pytest.importorskip("torch", reason="torchrun comes with torch, which this interpreter does not have")


def run(*command, **env):
    done = subprocess.run([PYTHON, *map(str, command)], env=clean_environment(**env), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return parse_facts(done.stdout)


def test_torchrun():
    facts = run("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", 2, "--no-python",
                BIN / "rank_env_print")
    assert [(f["rank"], f["world_size"], f["local_rank"]) for f in facts] == [("0", "2", "0"), ("1", "2", "1")]
    assert all(f["launcher"] == "torchrun" and f["mpi_started"] == "false" for f in facts)
    assert facts[0]["master_port"] == facts[1]["master_port"] != "0"


def test_torch_distributed_launch_with_the_node_rank_of_a_slurm_task(tmp_path):
    """As in cluster scripts: one launcher per SLURM task, --node_rank $SLURM_PROCID."""
    slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_LOCALID": "0",
             "SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0"}
    script = tmp_path / "start.py"
    script.write_text(f"import os; os.execv({str(BIN / 'rank_env_print')!r}, ['rank_env_print'])\n")
    facts = run("-u", "-m", "torch.distributed.launch", "--nproc_per_node", 2, "--nnodes", 1, "--master_addr",
                "127.0.0.1", "--master_port", free_port(), "--node_rank", slurm["SLURM_PROCID"], script, **slurm)
    assert [f["rank"] for f in facts] == ["0", "1"]
    assert all(f["launcher"] == "torchrun" and f["world_size"] == "2" for f in facts)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]

"""Programs that torchrun started find their rank without flags; test_slurm.py has torch.distributed.launch."""

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

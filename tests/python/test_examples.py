"""The Python examples run at a tiny size on two ranks, DDP beside stage 2 and stage 3, and learn."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(os.environ.get("CAPSTAN_SOURCE", Path(__file__).parents[2])) / "examples"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def run(words, folder):
    """What the program printed."""
    done = subprocess.run([sys.executable, "-m", *words], cwd=folder, env=dict(os.environ, OMP_NUM_THREADS="1"),
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=400)
    assert done.returncode == 0, done.stdout[-4000:]
    print(done.stdout.strip().splitlines()[-1])
    return done.stdout


def losses_of(text):
    return [float(found) for found in re.findall(r"loss ([0-9.]+)", text)]


@pytest.mark.parametrize("example", ["04_causal_lm", "05_seq2seq"])
def test_through_accelerate(example):
    pytest.importorskip("accelerate", reason="needs the package accelerate")
    pytest.importorskip("transformers", reason="needs the package transformers")
    results = {}
    for kind in ("ddp", "zero2", "zero3"):
        words = ["accelerate.commands.launch", "--config_file", f"{kind}.yaml", "--main_process_port", free_port(),
                 "train.py"]
        results[kind] = losses_of(run(words, EXAMPLES / example))
    assert results["zero2"] == results["zero3"]
    assert results["ddp"][0] == pytest.approx(results["zero2"][0], abs=2e-3)
    assert results["ddp"][-1] == pytest.approx(results["zero2"][-1], rel=0.1)  # the schedules differ by a step
    assert results["ddp"][-1] < results["ddp"][0]


def test_images_through_the_engine():
    words = ["torch.distributed.run", "--nnodes=1", "--nproc_per_node=2", "--master_port", free_port(), "train.py",
             "--steps", "12"]
    lines = re.findall(r"first loss ([0-9.]+), last loss ([0-9.]+)", run(words, EXAMPLES / "06_images_python"))
    ddp, second, third = ([float(value) for value in line] for line in lines)
    assert second == third and ddp == pytest.approx(second, abs=1e-3)
    assert ddp[1] < ddp[0]

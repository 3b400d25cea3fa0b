"""The Python examples run at a tiny size on two ranks, DDP beside stage 2 and stage 3, and learn."""

import contextlib
import os
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

EXAMPLES = Path(os.environ.get("CAPSTAN_SOURCE", Path(__file__).parents[2])) / "examples"


def free_ports(count):
    """Different ones: all are held until the last is found."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [str(probe.getsockname()[1]) for probe in probes]


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
    kinds = ("ddp", "zero2", "zero3")
    words = [["accelerate.commands.launch", "--config_file", f"{kind}.yaml", "--main_process_port", port, "train.py"]
             for kind, port in zip(kinds, free_ports(len(kinds)))]
    with ThreadPoolExecutor() as pool:  # most of a run is one process that imports
        outputs = pool.map(lambda each: run(each, EXAMPLES / example), words)
        results = dict(zip(kinds, map(losses_of, outputs)))
    assert results["zero2"] == results["zero3"]
    assert results["ddp"][0] == pytest.approx(results["zero2"][0], abs=2e-3)
    assert results["ddp"][-1] == pytest.approx(results["zero2"][-1], rel=0.1)  # the schedules differ by a step
    assert results["ddp"][-1] < results["ddp"][0]


def test_images_through_the_engine():
    words = ["torch.distributed.run", "--nnodes=1", "--nproc_per_node=2", "--master_port", *free_ports(1), "train.py",
             "--steps", "12"]
    lines = re.findall(r"first loss ([0-9.]+), last loss ([0-9.]+)", run(words, EXAMPLES / "06_images_python"))
    ddp, second, third = ([float(value) for value in line] for line in lines)
    assert second == third and ddp == pytest.approx(second, abs=1e-3)
    assert ddp[1] < ddp[0]

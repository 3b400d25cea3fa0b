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


SEEDS = {"05_seq2seq": ["zero2_fp16.yaml", "--source_prefix", "chatbot: ", "--max_source_length", "21",
                        "--max_target_length", "12", "--val_max_target_length", "12", "--val_min_target_length", "6",
                        "--n_val_batch_generations", "1", "--n_train", "256", "--n_val", "16", "--pad_to_max_length",
                        "--num_beams", "10", "--num_warmup_steps", "2", "--seed", "25", "--logging_steps", "8"],
         "04_causal_lm": ["zero3_offload_fp16.yaml", "--block_size", "64", "--learning_rate", "5e-4",
                          "--per_device_train_batch_size", "16", "--num_train_epochs", "1"]}


def test_files_as_people_write_them_train_in_fp16_with_offload():
    """Configurations and flags that came with the examples' models, at a small size."""
    pytest.importorskip("accelerate", reason="needs the package accelerate")
    pytest.importorskip("transformers", reason="needs the package transformers")
    words = [["accelerate.commands.launch", "--main_process_port", port, "--config_file", flags[0], "train.py", *flags[1:]]
             for flags, port in zip(SEEDS.values(), free_ports(len(SEEDS)))]
    with ThreadPoolExecutor() as pool:
        outputs = list(pool.map(lambda each, name: run(each, EXAMPLES / name), words, SEEDS))
    for text in outputs:
        losses = losses_of(text)
        assert losses[-1] < 0.98 * losses[0], text
        assert "DEEPSPEED" in text


def test_images_through_the_engine():
    words = ["torch.distributed.run", "--nnodes=1", "--nproc_per_node=2", "--master_port", *free_ports(1), "train.py",
             "--steps", "12"]
    lines = re.findall(r"first loss ([0-9.]+), last loss ([0-9.]+)", run(words, EXAMPLES / "06_images_python"))
    ddp, second, third = ([float(value) for value in line] for line in lines)
    assert second == third and ddp == pytest.approx(second, abs=1e-3)
    assert ddp[1] < ddp[0]

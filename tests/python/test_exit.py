"""A program's end while a thread of its backend still drops a tensor of Python's."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, sys, threading, time
import torch
import torch.distributed as dist
import deepspeed

dropping = threading.Event()


class Late(torch.Tensor):
    def __del__(self):
        if threading.get_native_id() != os.getpid():
            dropping.set()
            time.sleep(1)  # until after the interpreter has begun to end


if sys.argv[1] != "ours":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.Linear(8, 1)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 3 if sys.argv[2] == "closed" else 2, "stage3_param_persistence_threshold": 0},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}})
if sys.argv[2] == "closed":
    engine.destroy()  # the model has its shards still
    assert model.weight.shape == (0,)
deadline = time.time() + 60
while not dropping.is_set() and time.time() < deadline:
    dist.group.WORLD.allreduce([torch.ones(1 << 16).as_subclass(Late)])
assert dropping.wait(1)
if sys.argv[1] == "theirs":
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("engine", ["open", "closed"])
@pytest.mark.parametrize("group", ["ours", "theirs", "left"])  # "left": made by the program, and not ended by it
def test_a_program_with_an_engine_ends_cleanly(group, engine):
    done = subprocess.run([sys.executable, "-c", PROGRAM, group, engine], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=120)
    assert done.returncode == 0, done.stdout

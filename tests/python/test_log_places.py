"""A line of the log names the caller's place, and its rank once."""

import inspect
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import ranks
import torch

import capstan
from capstan import program

deepspeed = pytest.importorskip("deepspeed", reason="needs the package deepspeed")


def here():
    return inspect.currentframe().f_back.f_lineno


def places():
    """(what, expected line, found line) of messages that our code makes, some of them in C++; all are of this file."""
    found, records = [], []

    def note(what, line):
        record = next(record for record in records if what in record.getMessage())
        assert Path(record.pathname) == Path(__file__), (what, record.pathname)
        found.append((what, line, record.lineno))

    for name in ("DeepSpeed", "capstan"):
        logging.getLogger(name).setLevel(logging.INFO)
        logging.getLogger(name).addFilter(lambda record: records.append(record) or False)
    model = torch.nn.Linear(2, 2)
    config = {"train_batch_size": 1, "fp16": {"enabled": True}, "optimizer": {"type": "AdamW"}, "steps_per_print": 1}
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    note("DeepSpeed info", here() - 1)
    engine.backward((engine(torch.ones(1, 2).half()) * float("inf")).sum())
    engine.step()
    note("step skipped", here() - 1)  # the engine's own words
    note("step=1", here() - 2)
    deepspeed.utils.log_dist("mine", ranks=[0])
    note("mine", here() - 1)
    deepspeed.utils.logger.warning_once("once")
    note("once", here() - 1)
    plain = capstan.initialize(torch.nn.Linear(2, 2), {"train_batch_size": 1})
    plain.module.late = torch.nn.Linear(2, 2)
    plain._late.tell(plain._log)
    note("after initialize()", here() - 1)
    return found


def test_places_are_the_caller_s():
    for what, expected, line in ranks.run(1, places)[0]:
        assert line == expected, what


SCRIPT = """import deepspeed, torch
deepspeed.init_distributed("gloo")
deepspeed.utils.log_dist("hello", ranks=[0], use_logger=False)
if torch.distributed.get_rank() == 0:
    raise ValueError("mine")
"""


@pytest.mark.parametrize("command", ["capstan", "deepspeed"])
def test_a_rank_is_named_once_in_each_line(tmp_path, command):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    words = ([program.find(), "launch", "-n", "2"] if command == "capstan"
             else [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", "2"])
    done = subprocess.run([*words, script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
                          env={**os.environ, "CAPSTAN_PYTHON": sys.executable})
    assert done.returncode == 1, done.stdout
    first = [next(line for line in done.stdout.splitlines() if text in line) for text in ("hello", "ValueError: mine")]
    assert first == {"capstan": ["[rank 0] hello", "[rank 0] ValueError: mine"],
                     "deepspeed": ["[Rank 0] hello", "[rank0]: ValueError: mine"]}[command]

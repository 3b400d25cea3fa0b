"""What the engine's programs find in their environment: an engine that only tells it stands in for the real one."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

BIN = Path(os.environ["CAPSTAN_BIN"])
BATCH = {"train_micro_batch_size_per_gpu": 1}
ON_DISK = [{"offload_optimizer": {"device": "nvme", "nvme_path": "."}}, {"offload_param": {"device": "nvme", "nvme_path": "."}}]
ELSEWHERE = [{}, {"offload_optimizer": {"device": "cpu"}}]


@pytest.fixture(scope="module")
def capstan(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bin")
    shutil.copy(BIN / "capstan", folder)
    for name in ("capstan-engine", "capstan-engine-cuda"):
        (folder / name).write_text('#!/bin/sh\necho "spins ${GOMP_SPINCOUNT-unset}"\n')
        (folder / name).chmod(0o755)
    return folder / "capstan"


def spins(capstan, words, config, **env):
    kept = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([capstan, *words, "--config", config if isinstance(config, str) else json.dumps(config)],
                          capture_output=True, text=True, timeout=60, env={**kept, **env})
    assert done.returncode == 0, done.stderr
    return [line.split()[-1] for line in done.stdout.splitlines() if "spins" in line]


@pytest.mark.parametrize("words", [["train", "-n", "1"], ["train", "-n", "2"], ["generate", "-n", "1", "m", "p"]],
                         ids=["one rank", "two ranks", "generate"])
def test_threads_that_wait_sleep_soon_where_state_is_on_a_disk(capstan, words):
    ranks = int(words[2])
    for zero in ON_DISK:
        assert spins(capstan, words, {**BATCH, "zero_optimization": {"stage": 3, **zero}}) == ["1000"] * ranks
    for zero in ELSEWHERE:
        assert spins(capstan, words, {**BATCH, "zero_optimization": {"stage": 3, **zero}}) == ["unset"] * ranks


def test_what_the_user_says_about_waiting_is_kept(capstan):
    on_disk = {"zero_optimization": {"stage": 3, **ON_DISK[0]}}
    assert spins(capstan, ["train", "-n", "1"], on_disk, GOMP_SPINCOUNT="7") == ["7"]
    assert spins(capstan, ["train", "-n", "1"], on_disk, OMP_WAIT_POLICY="active") == ["unset"]


def test_a_configuration_that_is_wrong_is_left_to_the_ranks(capstan):
    for config in ("nowhere.json", "{", '{"zero_optimization": {"stage": 9}}'):
        assert spins(capstan, ["train", "-n", "1"], config) == ["unset"]

"""Checkpoints to and from the real DeepSpeed package: train there, go on here, and the reverse, bit for bit.

Needs a Python with deepspeed 0.19.8, as `make peer` makes one: build/peer/bin/python, or CAPSTAN_DEEPSPEED_PYTHON.
"""

import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

SOURCE = Path(os.environ["CAPSTAN_SOURCE"])
CAPSTAN = Path(os.environ["CAPSTAN_BIN"]) / "capstan"
PEER = Path(os.environ.get("CAPSTAN_DEEPSPEED_PYTHON", SOURCE / "build" / "peer" / "bin" / "python"))
TIMEOUT = 600
WORLD = 2

pytestmark = pytest.mark.skipif(not PEER.exists(), reason="the real DeepSpeed is not installed: make peer")


def launch(python, env, options):
    """Runs WORLD ranks of deepspeed_peer.py."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(WORLD):
        its = dict(env, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD), MASTER_ADDR="127.0.0.1",
                   MASTER_PORT=str(port), OMP_NUM_THREADS="1", ONEDNN_MAX_CPU_ISA="AVX512_CORE_BF16")
        ranks.append(subprocess.Popen([python, SOURCE / "tests/checkpoint/deepspeed_peer.py", json.dumps(options)], env=its,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    for rank in ranks:
        output, _ = rank.communicate(timeout=TIMEOUT)
        assert rank.returncode == 0, output[-3000:]


def peer_environment():
    """Without our own package of the same name."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"DS_ACCELERATOR": "cpu"}


def deepspeed(**options):
    launch(PEER, peer_environment(), options)


def ours(**options):
    launch(sys.executable, os.environ, options)


def capstan(*words):
    done = subprocess.run([CAPSTAN, "checkpoint", *map(str, words)], capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stdout + done.stderr


def read_column(path):
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    return {name: numpy.frombuffer(data[8 + length + e["data_offsets"][0]:8 + length + e["data_offsets"][1]],
                                   dtype=numpy.float32)
            for name, e in header.items() if name != "__metadata__" and e["dtype"] == "F32"}


def expect_equal(folder, dumped):
    """Masters and moments of our checkpoint are those that DeepSpeed told."""
    columns = {"master": read_column(folder / "model.safetensors"),
               "exp_avg": read_column(folder / "optimizer.exp_avg.safetensors"),
               "exp_avg_sq": read_column(folder / "optimizer.exp_avg_sq.safetensors")}
    compared = 0
    for key, values in dumped.items():
        if "/" in key:
            column, name = key.split("/", 1)
            assert numpy.array_equal(columns[column][name], numpy.array(values, dtype=numpy.float32)), key
            compared += 1
    assert compared == 15


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_there_and_back_again(stage, dtype, tmp_path):
    deepspeed(stage=stage, dtype=dtype, steps=3, save=str(tmp_path / "theirs"), dump=str(tmp_path / "saved.json"))
    capstan("convert", tmp_path / "theirs", tmp_path / "ours")
    expect_equal(tmp_path / "ours" / "global_step3", json.loads((tmp_path / "saved.json").read_text()))
    capstan("verify", tmp_path / "ours")
    # What we export is what DeepSpeed resumes from: the same masters, moments and further losses.
    capstan("export", tmp_path / "ours", tmp_path / "exported")
    for folder in ("theirs", "exported"):
        deepspeed(stage=stage, dtype=dtype, steps=2, load=str(tmp_path / folder), dump=str(tmp_path / f"{folder}.json"))
    theirs, ours = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("theirs", "exported"))
    assert ours == theirs and ours["steps"] == 5
    if stage > 0:
        script = ("import sys, json; from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint as get\n"
                  "d = get(sys.argv[1]); json.dump({k: v.reshape(-1).tolist() for k, v in d.items()}, open(sys.argv[2], 'w'))")
        subprocess.run([PEER, "-c", script, tmp_path / "exported", tmp_path / "fp32.json"], check=True,
                       env=peer_environment(), timeout=TIMEOUT)
        whole = json.loads((tmp_path / "fp32.json").read_text())
        weights = read_column(tmp_path / "ours" / "global_step3" / "model.safetensors")
        for name in ("entry.weight", "body.bias", "head.weight"):
            assert numpy.array_equal(weights[name], numpy.array(whole[name], dtype=numpy.float32)), name


def test_a_universal_checkpoint_is_read(tmp_path):
    deepspeed(stage=2, dtype="bf16", steps=3, save=str(tmp_path / "theirs"), dump=str(tmp_path / "saved.json"))
    subprocess.run([PEER, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder", tmp_path / "theirs/global_step3",
                    "--output_folder", tmp_path / "theirs/global_step3_universal", "--inject_missing_state"],
                   check=True, env=peer_environment(), timeout=TIMEOUT)
    capstan("convert", tmp_path / "theirs", tmp_path / "ours", "--tag", "global_step3_universal")
    expect_equal(tmp_path / "ours" / "global_step3_universal", json.loads((tmp_path / "saved.json").read_text()))


def dumped(path):
    return {key: value for key, value in json.loads(path.read_text()).items() if key != "losses"}


def test_what_was_trained_there_goes_on_here_without_conversion(tmp_path):
    deepspeed(stage=2, dtype="bf16", steps=3, save=str(tmp_path / "theirs"), dump=str(tmp_path / "saved.json"))
    ours(stage=3, dtype="bf16", steps=0, load=str(tmp_path / "theirs"), dump=str(tmp_path / "loaded.json"))
    assert dumped(tmp_path / "loaded.json") == dumped(tmp_path / "saved.json")


def test_what_was_trained_here_goes_on_there(tmp_path):
    ours(stage=1, dtype="fp32", steps=3, save=str(tmp_path / "ours"), dump=str(tmp_path / "saved.json"))
    capstan("export", tmp_path / "ours", tmp_path / "exported", "--stage", "2")
    # DeepSpeed tells its moments only after a step, but saves what it has loaded.
    deepspeed(stage=2, dtype="fp32", steps=0, load=str(tmp_path / "exported"), save=str(tmp_path / "theirs"))
    capstan("convert", tmp_path / "theirs", tmp_path / "back")
    expect_equal(tmp_path / "back" / "global_step3", json.loads((tmp_path / "saved.json").read_text()))

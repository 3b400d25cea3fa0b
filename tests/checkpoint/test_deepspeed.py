"""Checkpoints to and from the real DeepSpeed package: train there, go on here, and the reverse, bit for bit.

Needs deepspeed 0.19.8 as tools/peer.py installs it: in build/peer, or where CAPSTAN_DEEPSPEED says. On a machine with one
GPU, CAPSTAN_PEER=cuda:1:fp16 (device, ranks, precisions) takes the same way in fp16, which DeepSpeed has on no CPU.
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
PEER = Path(os.environ.get("CAPSTAN_DEEPSPEED", SOURCE / "build" / "peer"))
TIMEOUT = 600
DEVICE, RANKS, DTYPES = os.environ.get("CAPSTAN_PEER", "cpu:2:bf16,fp32").split(":")
WORLD = int(RANKS)
# With two groups of parameters everywhere; with one, each stage once.
CASES = [(stage, dtype, groups) for dtype in DTYPES.split(",") for stage in (0, 1, 2, 3) for groups in (1, 2)
         if groups == 2 or (stage % 2 == 0) == (dtype != "fp32")]
UNIVERSAL = [case for case in CASES if case in ((2, "bf16", 2), (3, "fp32", 1), (2, "fp16", 1), (3, "fp16", 2))]
# How far two steps of the same arithmetic in another order of sums may lead: a few units of the last bit.
TOLERANCES = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 2e-3}
each_case = pytest.mark.parametrize("stage, dtype, groups", CASES)

pytestmark = pytest.mark.skipif(not (PEER / "deepspeed").exists(), reason="the real DeepSpeed is not installed: make peer")


def peer_environment():
    """Its packages before those of this Python, and not our own package of the same name."""
    return os.environ | {"PYTHONPATH": str(PEER)}


def launch(env, tasks):
    """WORLD ranks of deepspeed_peer.py."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(WORLD):
        its = dict(env, DS_ACCELERATOR=DEVICE, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD), MASTER_ADDR="127.0.0.1",
                   MASTER_PORT=str(port), OMP_NUM_THREADS="1", ONEDNN_MAX_CPU_ISA="AVX512_CORE_FP16")
        ranks.append(subprocess.Popen([sys.executable, SOURCE / "tests/checkpoint/deepspeed_peer.py", json.dumps(tasks)],
                                      env=its, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    try:
        outputs = [rank.communicate(timeout=TIMEOUT)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, output in zip(ranks, outputs):
        assert rank.returncode == 0, output[-3000:]


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


def expect_equal(folder, path):
    """Masters and moments of our checkpoint are those that a run told."""
    columns = {"master": read_column(folder / "model.safetensors"),
               "exp_avg": read_column(folder / "optimizer.exp_avg.safetensors"),
               "exp_avg_sq": read_column(folder / "optimizer.exp_avg_sq.safetensors")}
    if (folder / "master.safetensors").exists():
        columns["master"] = read_column(folder / "master.safetensors")
    values = told(path)
    assert values.pop("steps") == 3 and values.pop("skipped") == 0
    state = json.loads((folder / "index.json").read_text())["state"]
    if "scale" in values:
        assert state["loss_scale"]["scale"] == values.pop("scale")
    hypers = [group["hyper"] for group in state["optimizer"]["groups"]]
    assert [[hyper[name] for name in ("lr", "weight_decay", "beta1", "beta2")] for hyper in hypers] == values.pop("groups")
    assert len(values) == 15
    for key, value in values.items():
        column, name = key.split("/", 1)
        assert numpy.array_equal(columns[column][name], numpy.array(value, dtype=numpy.float32)), key


def told(path):
    return {key: value for key, value in json.loads(path.read_text()).items() if key != "losses"}


def losses(path):
    return json.loads(path.read_text())["losses"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder per case with everything that the tests compare; few processes, because importing takes longest."""
    root = tmp_path_factory.mktemp("deepspeed")
    places = {case: root / "_".join(map(str, case)) for case in CASES}
    tasks = []
    for (stage, dtype, groups), at in places.items():
        at.mkdir()
        tasks.append({"stage": stage, "dtype": dtype, "groups": groups, "steps": 3, "save": f"{at}/theirs",
                      "dump": f"{at}/theirs_saved.json"})
    launch(peer_environment(), tasks)
    go_on_here(places)
    for at in places.values():
        capstan("convert", at / "theirs", at / "converted")
        capstan("verify", at / "converted")
        capstan("export", at / "converted", at / "exported")
    go_on_there(places)
    return places


def go_on_here(places):
    """Their folders read by our package without conversion; and runs of our own."""
    tasks = []
    for (stage, dtype, groups), at in places.items():
        case = {"stage": stage, "dtype": dtype, "groups": groups}
        tasks += [case | {"load": f"{at}/theirs", "steps": 2, "loaded": f"{at}/theirs_here.json",
                          "dump": f"{at}/theirs_on_here.json"},
                  case | {"steps": 3, "save": f"{at}/ours", "dump": f"{at}/ours_saved.json"},
                  case | {"load": f"{at}/ours", "steps": 2, "dump": f"{at}/ours_on_here.json"},
                  {"export": f"{at}/ours/global_step3", "into": f"{at}/ours_exported"},
                  {"zero_to_fp32": f"{at}/theirs", "dump": f"{at}/theirs_fp32.json"}]
    launch(os.environ, tasks)


def go_on_there(places):
    """What we exported read by DeepSpeed."""
    tasks = []
    for (stage, dtype, groups), at in places.items():
        case = {"stage": stage, "dtype": dtype, "groups": groups, "steps": 2}
        tasks += [case | {"load": f"{at}/{folder}", "dump": f"{at}/{folder}_on_there.json"}
                  for folder in ("theirs", "exported", "ours_exported")]
        # DeepSpeed tells its moments only after a step, but saves what it has loaded.
        tasks.append(case | {"steps": 0, "load": f"{at}/ours_exported", "save": f"{at}/back"})
        if stage > 0:
            tasks.append({"zero_to_fp32": f"{at}/exported", "dump": f"{at}/exported_fp32.json"})
    launch(peer_environment(), tasks)


def expect_close_losses(some, others, case):
    stage, dtype = case
    if (stage, dtype) == (0, "fp16"):
        # DeepSpeed 0.19.8 divides the gradients by a loss scale there that it has not multiplied the loss by.
        assert losses(some)[0] == pytest.approx(losses(others)[0], rel=TOLERANCES[dtype])
        return
    assert losses(some) == pytest.approx(losses(others), rel=TOLERANCES[dtype])


@each_case
def test_their_checkpoint_converts_bit_for_bit(folders, stage, dtype, groups):
    at = folders[stage, dtype, groups]
    expect_equal(at / "converted" / "global_step3", at / "theirs_saved.json")


@each_case
def test_what_was_trained_there_goes_on_here_without_conversion(folders, stage, dtype, groups):
    at = folders[stage, dtype, groups]
    assert told(at / "theirs_here.json") == told(at / "theirs_saved.json")
    expect_close_losses(at / "theirs_on_here.json", at / "theirs_on_there.json", (stage, dtype))


@each_case
def test_what_was_trained_there_comes_back_as_if_it_had_never_left(folders, stage, dtype, groups):
    at = folders[stage, dtype, groups]
    back = told(at / "exported_on_there.json")
    assert back == told(at / "theirs_on_there.json") and back["steps"] == 5
    assert losses(at / "exported_on_there.json") == losses(at / "theirs_on_there.json")


@each_case
def test_what_was_trained_here_goes_on_there(folders, stage, dtype, groups):
    at = folders[stage, dtype, groups]
    capstan("convert", at / "back", at / "back_converted")
    expect_equal(at / "back_converted" / "global_step3", at / "ours_saved.json")
    expect_close_losses(at / "ours_exported_on_there.json", at / "ours_on_here.json", (stage, dtype))


@each_case
def test_each_reads_the_whole_weights_of_the_others_files(folders, stage, dtype, groups):
    at = folders[stage, dtype, groups]
    saved = told(at / "theirs_saved.json")
    for path in ["theirs_fp32.json"] + (["exported_fp32.json"] if stage > 0 else []):
        whole = json.loads((at / path).read_text())
        masters = {key.split("/", 1)[1]: value for key, value in saved.items() if key.startswith("master/")}
        assert {name: whole[name] for name in masters} == masters, path
        assert whole["offset"] == [0, 1, 2] and whole.get("frozen", [0.25] * 5) == [0.25] * 5, path


@pytest.mark.parametrize("stage, dtype, groups", UNIVERSAL)
def test_a_universal_checkpoint_is_read(folders, stage, dtype, groups):
    at = folders[stage, dtype, groups]
    subprocess.run([sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder",
                    at / "theirs/global_step3", "--output_folder", at / "theirs/global_step3_universal",
                    "--inject_missing_state"], check=True,
                   env=peer_environment() | {"DS_ACCELERATOR": DEVICE}, timeout=TIMEOUT)
    capstan("convert", at / "theirs", at / "from_universal", "--tag", "global_step3_universal")
    expect_equal(at / "from_universal" / "global_step3_universal", at / "theirs_saved.json")

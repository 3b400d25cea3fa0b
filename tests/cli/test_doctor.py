"""`capstan doctor` on what real runs leave: a rank that is killed, one that is slow, a slow disk, ranks that come to have
different parameters, a layer that makes NaN; and on folders that hold nothing, or half of something."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from nvme_run import CAPSTAN, TIMEOUT, NvmeRun

BIN = Path(os.environ["CAPSTAN_BIN"])
PYTHON = os.environ["CAPSTAN_PYTHON"]
SCRIPT = Path(__file__).parent / "faulty_run.py"


def doctor(folder, *words, code=0):
    done = subprocess.run([CAPSTAN, "doctor", folder, *words], capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def findings(text):
    """The lines that begin a finding, without the words of the weight."""
    return [line.split(": ", 1)[1] for line in text.splitlines() if line.startswith(("likely cause: ", "suspicion: ", "remark: "))]


def run(folder, fault, stage=1, check=True):
    """Two Python ranks with one fault, under the launcher; returns what it finds."""
    done = subprocess.run([CAPSTAN, "launch", "-n", "2", "--launcher", "local", "--grace", "20", "--no_local_rank", "--log-dir",
                           folder, SCRIPT, fault, str(stage)],
                          capture_output=True, text=True, timeout=TIMEOUT,
                          env={**os.environ, "CAPSTAN_PYTHON": PYTHON, "CUDA_VISIBLE_DEVICES": ""})
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return doctor(folder)


def test_a_good_run_has_no_findings(tmp_path):
    text = run(tmp_path, "none")
    assert "job.json: how 2 ranks ended; notes of 2 ranks" in text, text
    assert not [line for line in findings(text) if "slow" not in line], text
    for rank in range(2):
        notes = json.loads((tmp_path / "diagnosis" / f"rank_{rank}.json").read_text())
        assert (notes["rank"], notes["steps"], notes["state"]) == (rank, 12, "closed")
        assert notes["memory_peaks"]["device parameters"] > 0 and "#" in notes["operations"]
    assert list((tmp_path / "logs").glob("*_rank1.log"))


def test_a_killed_rank_is_named(tmp_path):
    text = run(tmp_path, "killed", check=False)
    assert findings(text)[0].startswith("rank 1 stopped first: it was killed from outside"), text
    assert "its last notes tell of 2 steps" in text or "its last notes tell of 3 steps" in text, text
    assert "rank 0 ended" in text, text


def test_a_slow_rank_is_named_with_what_it_did(tmp_path):
    text = run(tmp_path, "slow")
    assert any(line.startswith("rank 1 is slow") for line in findings(text)), text
    assert "more than the others on its forward" in text, text


def test_ranks_whose_parameters_differ_are_named(tmp_path):
    text = run(tmp_path, "diverging", stage=0)
    assert findings(text)[0].startswith("ranks 0 and 1 trained different models"), text
    assert "'1'" in findings(text)[0], text


@pytest.mark.parametrize("stage", [0, 3])
def test_the_layer_that_makes_nan_is_named(tmp_path, stage):
    text = run(tmp_path, "nan", stage)
    assert findings(text)[0] == "the output of 1 is inf or NaN, first in step 5 on rank 1", text


def test_a_slow_disk_is_named(tmp_path):
    nvme = NvmeRun(tmp_path, steps=4)
    nvme.run(tmp_path / "saved", LD_PRELOAD=str(BIN / "libfaulty_disk.so"), CAPSTAN_FAULTY_DISK="slow")
    text = doctor(tmp_path / "saved")
    assert any(line.startswith("the disk holds training up") for line in findings(text)), text


def test_a_run_that_saves_leaves_its_metrics(tmp_path):
    nvme = NvmeRun(tmp_path, ranks=1, steps=2)
    command = nvme.command(tmp_path / "saved")
    metrics = command.index("--metrics")
    del command[metrics:metrics + 2]
    subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT)
    text = doctor(tmp_path / "saved")
    assert "metrics.jsonl: 2 steps" in text and "notes of 1 rank" in text, text


def test_the_notes_are_no_reason_to_fail(tmp_path):
    (tmp_path / "diagnosis").write_text("a file where the folder should be")
    done = subprocess.run([CAPSTAN, "launch", "-n", "1", "--launcher", "local", "--log-dir", tmp_path, "--no_python", "/bin/true"],
                          capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0 and "capstan: warning: cannot write" in done.stderr, done.stderr


def test_what_cannot_be_read_is_listed(tmp_path):
    folder = tmp_path / "diagnosis"
    folder.mkdir()
    good = {"capstan_rank_notes": 1, "rank": 1, "state": "training", "steps": 7}
    (folder / "rank_0.json").write_text(json.dumps(good)[:40])
    (folder / "rank_1.json").write_text(json.dumps(good))
    (folder / "rank_2.json").write_text("")
    (folder / "rank_3.json").write_text("[1, 2]")
    (folder / "job.json").write_bytes(bytes(range(256)))
    os.mkfifo(folder / "rank_4.json")
    lines = [json.dumps({"step": i, "loss": 3.0, "skipped": False}) for i in range(1, 31)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 31, "lo')
    text = doctor(tmp_path)
    assert "read: metrics.jsonl: 30 steps; notes of 1 rank" in text, text
    for line in ("rank_0.json: cut off, or not JSON", "rank_2.json: empty", "rank_3.json: not the notes of a rank",
                 "job.json: cut off, or not JSON", "1 line of metrics.jsonl: cut off"):
        assert f"not read: {line}" in text, text


def test_a_folder_without_anything_is_refused(tmp_path):
    assert "the folder holds nothing that a run leaves" in doctor(tmp_path, code=2)
    assert "there is no such folder" in doctor(tmp_path / "none", code=2)
    assert "there is no such file" in doctor(tmp_path, "--metrics", tmp_path / "none", code=2)

"""Training runs with all state on disk: on a disk that is slow, answers in part, fails or is full; killed; and with the
annotated configuration that users know."""

import os
import subprocess
from pathlib import Path

import pytest

from nvme_kills import kill_runs
from nvme_run import CAPSTAN, NvmeRun

SOURCE = Path(os.environ["CAPSTAN_SOURCE"])
FAULTY_DISK = Path(os.environ["CAPSTAN_BIN"]) / "libfaulty_disk.so"


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """A run without faults: its losses."""
    run = NvmeRun(tmp_path_factory.mktemp("clean"))
    run.run(run.text.parent / "saved")
    assert len(run.losses()) == run.steps and run.swap_files() == []
    return run.losses()


def faults(kind, **more):
    return {"LD_PRELOAD": str(FAULTY_DISK), "CAPSTAN_FAULTY_DISK": kind, **more}


@pytest.mark.parametrize("kind", ["short", "slow"])
def test_a_disk_that_answers_in_part_or_late_changes_no_number(clean, tmp_path, kind):
    run = NvmeRun(tmp_path)
    run.run(tmp_path / "saved", **faults(kind))
    assert run.losses() == clean


@pytest.mark.parametrize("kind", ["EIO:1", "EIO:40", "ENOSPC:7"])
def test_a_disk_that_fails_is_an_error_that_names_the_file_and_leaves_the_last_checkpoint(clean, tmp_path, kind):
    run, saved = NvmeRun(tmp_path), tmp_path / "saved"
    # The second rank's disk, once a checkpoint is there.
    done = run.run(saved, check=False,
                   **faults(kind, CAPSTAN_FAULTY_RANK="1", CAPSTAN_FAULTY_AFTER=str(saved / "latest")))
    output = done.stdout + done.stderr
    assert done.returncode != 0 and kind.split(":")[0] in output, output
    assert f"{run.swap}/capstan-swap-" in output and "offset" in output, output
    assert all(loss == clean[step] for step, loss in run.losses().items())
    verified = subprocess.run([CAPSTAN, "checkpoint", "verify", saved], capture_output=True, text=True, timeout=60)
    assert verified.returncode == 0 and "DAMAGED" not in verified.stdout
    run.run(saved)  # on a good disk
    assert run.steps in run.losses() and all(loss == clean[step] for step, loss in run.losses().items())
    assert run.swap_files() == []


def test_killed_runs_go_on_with_the_same_numbers_and_leave_no_file_for_ever():
    assert kill_runs(10, seed=20261115).startswith("10 kills")


def test_the_annotated_configuration_runs_with_only_its_path_changed(tmp_path):
    run = NvmeRun(tmp_path, steps=3)
    annotated = (SOURCE / "tests/config/snippets/annotated.hjson").read_text()
    run.config = annotated.replace('"none"', '"nvme"').replace("/local_nvme", str(run.swap))
    assert run.config.count('"nvme"') == 2
    output = run.run(tmp_path / "saved").stdout
    assert "100 % of the optimizer and 100 % of the parameters" in output and len(run.losses()) == 3
    assert run.swap_files() == []

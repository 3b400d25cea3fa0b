"""`capstan pipeline show`; docs/pipelines.md shows more of it, and tests/docs runs that."""

import os
import subprocess
from pathlib import Path

CAPSTAN = Path(os.environ["CAPSTAN_BIN"]) / "capstan"


def show(*words):
    return subprocess.run([CAPSTAN, "pipeline", "show", *words], capture_output=True, text=True, timeout=60)


def test_a_shape_that_a_schedule_cannot_have_is_refused_with_those_it_can():
    done = show("--stages=4", "--micro-batches=6", "--schedule=interleaved", "--chunks=2")
    assert done.returncode == 2 and done.stdout == ""
    assert "6 micro-batches are not a multiple of 4 stages\n" in done.stderr
    assert "use 4 or 8 micro-batches, or the schedule 1f1b\n" in done.stderr


def test_transfers_show_as_idle_time():
    assert show("--stages=2", "--micro-batches=1", "--forward=2", "--backward-inputs=2", "--backward-weights=2", "--transfer=2",
                "--schedule=gpipe").stdout == (
        "stage 0  F0 .............. B0---\n"
        "stage 1  ..... F0 B0--- ........\n\n"
        "time         16, of which each stage works 6: efficiency 37.5 %\n"
        "activations  of at most 1, 1 micro-batches, from the first stage to the last\n")


def test_inference_holds_no_activations():
    assert show("--stages=1", "--micro-batches=2", "--schedule=inference").stdout == (
        "stage 0  F0 F1\n\ntime         2, of which each stage works 2: efficiency 100.0 %\n")


def test_a_picture_that_no_terminal_can_show_is_left_out():
    done = show("--stages=2", "--micro-batches=1024")
    assert done.returncode == 0 and done.stdout.startswith("(a picture would have 18450 columns)\n\ntime ")

"""The sections tensorboard and csv_monitor in `capstan train`."""

import json
import os
import subprocess
from pathlib import Path

import pytest

CAPSTAN = Path(os.environ["CAPSTAN_BIN"]) / "capstan"
TINY = ["--model", "gpt2-nano", "--layers", "1", "--width", "16", "--heads", "2", "--context", "16", "--vocab", "256",
        "--eval-batches", "1", "--sample-tokens", "0", "--device", "cpu", "--max-steps", "4", "--eval-every", "0"]


def train(folder, *words, check=True, **sections):
    text = folder / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 200)
    config = {"train_batch_size": 4, "train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
              "zero_optimization": {"stage": 1}, **sections}
    done = subprocess.run([CAPSTAN, "train", "-n", "2", "--data", text, "--config", json.dumps(config), *TINY, *map(str, words)],
                          capture_output=True, text=True, timeout=300)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with both kinds of curves, and the steps of the metrics file."""
    folder = tmp_path_factory.mktemp("monitors")
    section = {"enabled": True, "output_path": str(folder / "logs")}
    train(folder, "--metrics", folder / "m.jsonl", tensorboard={**section, "job_name": "tb"}, csv_monitor={**section, "job_name": "csv"})
    lines = [json.loads(line) for line in (folder / "m.jsonl").read_text().splitlines()]
    return folder / "logs", [line for line in lines if "loss" in line], lines[-1]["validation_loss"]


def test_csv_files_hold_the_figures_of_the_metrics_file(trained):
    logs, steps, validation = trained
    for event, figure in (("train_loss", "loss"), ("lr", "lr"), ("grad_norm", "grad_norm"), ("tokens_per_second", "tokens_per_s")):
        header, *rows = (logs / "csv" / f"Train_Samples_{event}.csv").read_text().splitlines()
        assert header == f"step,{event}"
        assert [int(row.split(",")[0]) for row in rows] == [4, 8, 12, 16]
        assert [float(row.split(",")[1]) for row in rows] == [line[figure] for line in steps]
    assert (logs / "csv" / "Train_Samples_eval_loss.csv").read_text().splitlines()[1].startswith("16,")
    assert not (logs / "csv" / "Train_Samples_loss_scale.csv").exists()


def test_tensorboards_own_reader_reads_our_event_file(trained):
    pytest.importorskip("tensorboard", reason="needs the package tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    logs, steps, validation = trained
    assert len(list((logs / "tb").iterdir())) == 1
    found = EventAccumulator(str(logs / "tb")).Reload()
    losses = found.Scalars("Train/Samples/train_loss")
    assert [event.step for event in losses] == [4, 8, 12, 16]
    assert [event.value for event in losses] == pytest.approx([line["loss"] for line in steps], rel=1e-6)
    assert [event.wall_time for event in losses] == pytest.approx([line["time"] for line in steps], abs=30)
    assert [event.value for event in found.Scalars("Train/Samples/eval_loss")] == pytest.approx([validation], rel=1e-6)
    assert {"Train/Samples/lr", "Train/Samples/grad_norm", "Train/Samples/memory_parameters_bytes"} <= set(found.Tags()["scalars"])


def test_monitors_of_python_packages_are_refused_by_name(tmp_path):
    done = train(tmp_path, check=False, wandb={"enabled": True}, comet={"enabled": True})
    assert done.returncode == 2 and "wandb.enabled" in done.stderr and "comet.enabled" in done.stderr
    assert "its client is a Python package" in done.stderr


def test_a_folder_that_cannot_be_made_is_an_error_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    done = train(tmp_path, check=False, csv_monitor={"enabled": True, "output_path": str(tmp_path / "file")})
    assert done.returncode == 2 and f"{tmp_path}/file/DeepSpeedJobName" in done.stderr and "step 1/" not in done.stdout

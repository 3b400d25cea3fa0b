"""capstan estimate and capstan plan as users call them."""

import json
import os
import subprocess
from pathlib import Path

import pytest

CAPSTAN = str(Path(os.environ["CAPSTAN_BIN"]) / "capstan")


def call(*words, ok=True):
    done = subprocess.run([CAPSTAN, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    assert (done.returncode == 0) == ok, done.stdout
    return done.stdout


def test_estimates_have_every_stage_and_placement():
    rows = json.loads(call("estimate", "--model", "gpt2", "--gpus", "4", "--json"))
    assert {row["stage"] for row in rows} == {0, 1, 2, 3}
    assert {row["placement"] for row in rows} == {"device", "optimizer: host", "all: host"}
    for row in rows:
        assert row["device_bytes"] == max(phase["total"] for phase in row["phases"].values())
        assert (row["host_bytes"] > 0) == (row["placement"] != "device")


def test_a_smaller_machine_is_told_apart():
    large, small = (json.loads(call("estimate", "--model", "gpt2-xl", "--gpu-memory", memory, "--json"))
                    for memory in ("80GiB", "8GiB"))
    assert all(row["fits"] for row in large)
    refused = [row for row in small if not row["fits"]]
    assert refused and all("GPU memory, there are 8 GiB" in row["lacks"] for row in refused)


def test_a_model_is_read_from_its_config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({
        "model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}))
    by_name, by_file = (json.loads(call("estimate", "--model", model, "--json")) for model in ("gpt2", tmp_path))
    assert by_name == by_file


def test_a_plan_trains(tmp_path):
    """On two CPU ranks: its memory, batch and stage are those of the file that it wrote."""
    plan, text = tmp_path / "plan.json", tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 400)
    call("plan", "--model", "gpt2-tiny", "--cpu", "--gpus", 2, "--host-memory", "8GiB", "--batch", 8, "-o", plan)
    config = json.loads(plan.read_text())
    assert config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"] * 2 == 8
    call("config", "check", plan, "-n", 2)
    said = call("train", "--model", "gpt2-tiny", "--config", plan, "-n", 2, "--device", "cpu", "--data", text,
                "--vocab", 256, "--max-steps", 2, "--sample-tokens", 0, "--metrics", tmp_path / "metrics.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert sum("loss" in line for line in lines) >= 2, said


def test_nothing_fits_is_an_error_that_says_what_would(tmp_path):
    said = call("plan", "--model", "gpt2-xl", "--gpu-memory", "1GiB", "--host-memory", "2GiB", "-o", tmp_path / "plan.json", ok=False)
    assert "nothing fits" in said and "--gpu-memory" in said
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize("words, expected", [
    (["estimate", "--model", "gtp2"], "did you mean gpt2"),
    (["estimate", "--gpus", "-3"], "--gpus"),
    (["estimate", "--gpu-memory", "24 parsecs"], "--gpu-memory"),
    (["estimate", "--heads", "7"], "not a multiple of 7 heads"),
    (["estimate", "--tokens", "9999"], "has a context of 1024"),
    (["estimate", "--gpus", "3", "--pipe", "2"], "no place for 3 ranks"),
    (["plan", "--model", "gpt2"], "--machine"),
    (["plan", "--machine", "h2000"], "did you mean h200"),
    (["plan", "--machine", "h200", "--goal", "cheapest"], "--goal"),
])
def test_bad_input_is_told(words, expected):
    assert expected in call(*words, ok=False)

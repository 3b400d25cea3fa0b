"""What a newcomer sees: `make train` with fewer steps, and the default configuration on every kind of machine."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

CAPSTAN = Path(os.environ["CAPSTAN_BIN"]) / "capstan"
SOURCE = Path(os.environ["CAPSTAN_SOURCE"])
SMALL = ["--device", "cpu", "--model", "gpt2-tiny", "--tokens", "64", "--eval-batches", "1", "--sample-tokens", "0"]
NO_BF16 = {"ONEDNN_MAX_CPU_ISA": "AVX2"}  # libtorch then computes as on a CPU without instructions for 16 bits
TIMEOUT = 400


def train(*words, env=None):
    done = subprocess.run([CAPSTAN, "train", *map(str, words)], capture_output=True, text=True, timeout=TIMEOUT,
                          cwd=SOURCE, env={**os.environ, **(env or {})})
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def losses(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def train_target():
    """The words that `make train` gives to `capstan train`, without its files."""
    recipe = re.search(r"capstan train (.*)", (SOURCE / "Makefile").read_text())[1]
    words = re.sub(r"--(curve|metrics) \S+|\$\(ARGS\)|'", "", recipe).split()
    assert "--data" in words
    return words


@pytest.fixture(scope="module")
def first_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("first")
    done = train(*train_target(), "--device", "cpu", "--max-steps", 100, "--log-every", 50, "--eval-batches", 2,
                 "--metrics", folder / "m.jsonl", "--curve", folder / "curve.html")
    return folder, done


def test_it_learns_without_a_warning_and_leaves_metrics_and_a_curve(first_run):
    folder, done = first_run
    steps = [json.loads(line) for line in (folder / "m.jsonl").read_text().splitlines()]
    taken = [line for line in steps if "loss" in line]
    assert [line["step"] for line in taken] == list(range(1, 101))
    assert all(line["tokens_per_s"] > 0 and line["grad_norm"] > 0 and not line["skipped"] for line in taken)
    assert taken[-1]["loss"] < 0.6 * taken[0]["loss"]
    assert steps[-1]["step"] == 100 and steps[-1]["validation_loss"] < 0.7 * taken[0]["loss"]
    page = (folder / "curve.html").read_text()
    assert "<svg" in page and "polyline" in page
    assert "2 ranks on cpu" in done.stdout and done.stdout.count("step 100/100") == 1
    assert done.stderr == ""


def test_the_sample_reads_like_the_text(first_run):
    """Letter soup has few words of the text in it, a vocabulary that nobody trained few pairs of words that follow each other."""
    _, done = first_run
    sample = re.search(r"-{72}\n(.*)\n-{72}", done.stdout, re.S)[1]

    def words_of(text):
        return re.findall(r"[A-Za-z]{2,}", text)

    text = words_of(" ".join(file.read_text() for file in sorted((SOURCE / "capstan").rglob("*.h"))))
    words, pairs, said = set(text), set(zip(text, text[1:])), words_of(sample)
    assert len(said) > 40, sample
    assert sum(word in words for word in said) > 0.9 * len(said), sample
    assert sum(pair in pairs for pair in zip(said, said[1:])) > 0.35 * len(said), sample


def test_the_default_recipe_does_not_spike(first_run, tmp_path):
    """A narrow model over bytes is where a rate that rises too fast shows: losses of 2 more, gradients of 100."""
    train(*SMALL, "-n", 1, "--tokens", 128, "--vocab", 256, "--seed", 2, "--data", "LICENSE", "--max-steps", 60,
          "--metrics", tmp_path / "bytes.jsonl")
    for path in (first_run[0] / "m.jsonl", tmp_path / "bytes.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        norms = [line["grad_norm"] for line in lines if "loss" in line]
        assert max(norms[10:]) < 20, norms
        all_losses = losses(path)
        lowest = [min(all_losses[:i + 1]) for i in range(len(all_losses))]
        assert all(loss < low + 1.5 for loss, low in zip(all_losses, lowest)), all_losses


def test_the_configuration_that_the_help_shows_is_the_default(tmp_path):
    shown = subprocess.run([CAPSTAN, "train", "--help"], capture_output=True, text=True, timeout=60).stdout
    config = tmp_path / "shown.json"
    config.write_text(shown.partition("Without --config:\n")[2])
    done = []
    for name, words in (("without", []), ("with", ["--config", config])):
        done.append(train(*SMALL, "--data", "docs", "--max-steps", 12, "--metrics", tmp_path / name, *words))
        assert "warm" not in done[-1].stderr
    assert losses(tmp_path / "with") == losses(tmp_path / "without")
    assert done[0].stderr == done[1].stderr


def test_the_default_suits_a_cpu_without_instructions_for_16_bits():
    done = train(*SMALL, "-n", 1, "--data", "docs", "--max-steps", 2, env=NO_BF16)
    assert re.search(r"^parameters +fp32", done.stdout, re.M) and done.stderr == ""


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_who_asks_for_16_bits_that_are_emulated_is_told_the_cost(dtype):
    config = json.dumps({"train_micro_batch_size_per_gpu": 1, dtype: {"enabled": True}, "optimizer": {"type": "AdamW"}})
    done = train(*SMALL, "-n", 2, "--data", "docs", "--max-steps", 2, "--config", config, env=NO_BF16)
    told = re.findall(rf"warning: {dtype} is emulated on this CPU, .* takes (\d+(?:\.\d)?) times as long as in fp32", done.stderr)
    assert len(told) == 1 and float(told[0]) > 1, done.stderr

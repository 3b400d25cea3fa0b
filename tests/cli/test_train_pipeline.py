"""capstan train --pipe: a model cut into stages, as a user runs it."""

import json
import os
import subprocess
from pathlib import Path

import pytest

BIN = Path(os.environ["CAPSTAN_BIN"])
TINY = ["--model", "gpt2-tiny", "--layers", "4", "--tokens", "64", "--log-every", "1", "--eval-batches", "2", "--sample-tokens", "0"]
TIMEOUT = 240  # seconds; a run takes a few on an idle machine


@pytest.fixture
def text(tmp_path):
    lines = [f"The number {i} is followed by the number {i + 1}.\n" for i in range(2000)]
    (tmp_path / "numbers.txt").write_text("".join(lines))
    return tmp_path / "numbers.txt"


def capstan(*words, check=True):
    done = subprocess.run([BIN / "capstan", *map(str, words)], capture_output=True, text=True, timeout=TIMEOUT)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def config(ranks, stage=1, micro_batches=4, **extra):
    """Sixteen samples a step on so many data-parallel ranks, in pieces of the same size."""
    return json.dumps({"train_batch_size": 4 * micro_batches, "train_micro_batch_size_per_gpu": 4 // ranks,
                       "zero_optimization": {"stage": stage}, "gradient_clipping": 1.0,
                       "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, **extra})


# Weights stay as they begin, so that no token that is drawn hangs on how a step was rounded.
STILL = {"type": "AdamW", "params": {"lr": 0.0, "weight_decay": 0.0}}


def run(text, folder, *words, ranks=1, pipe=1, steps=4, **how):
    """The losses of the steps and of the validation at the end."""
    metrics = folder / f"{ranks}-{pipe}-{steps}-{len(list(folder.iterdir()))}.jsonl"
    capstan("train", "-n", ranks, "--pipe", pipe, "--config", config(ranks // pipe, **how), "--data", text, "--max-steps", steps,
            "--metrics", metrics, *TINY, *words)
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line], lines[-1]["validation_loss"]


def near(losses, expected):
    """The embedding that both ends share is summed in another order: equal but for rounding."""
    assert losses[0] == pytest.approx(expected[0], rel=1e-4)
    assert losses[1] == pytest.approx(expected[1], rel=1e-4)


def test_a_pipeline_has_the_losses_of_the_whole_model(text, tmp_path):
    expected = run(text, tmp_path)
    assert expected[0][0] > expected[0][-1]
    two = run(text, tmp_path, ranks=2, pipe=2)
    near(two, expected)
    assert run(text, tmp_path, "--schedule", "gpipe", ranks=2, pipe=2) == two
    assert run(text, tmp_path, "--schedule", "zb-h1", ranks=2, pipe=2, stage=0) == two


def test_data_times_pipe(text, tmp_path):
    near(run(text, tmp_path, ranks=4, pipe=2, stage=2), run(text, tmp_path, ranks=2))


def test_a_run_goes_on_at_another_number_of_stages_and_generates(text, tmp_path):
    expected = run(text, tmp_path, steps=4)
    begun = run(text, tmp_path, "--save", tmp_path / "run", ranks=2, pipe=2, steps=2)
    rest = run(text, tmp_path, "--resume", tmp_path / "run", ranks=1, steps=4)
    near((begun[0] + rest[0], rest[1]), expected)
    back = run(text, tmp_path, "--resume", tmp_path / "run", ranks=4, pipe=4, steps=4)
    near((begun[0] + back[0], back[1]), expected)
    words = capstan("generate", "-n", 1, tmp_path / "run", "The number", "--max-new-tokens", 4)
    assert "The number" in words.stdout


def test_the_text_at_the_end_is_that_of_the_whole_model(text, tmp_path):
    def sample(ranks, pipe):
        done = capstan("train", "-n", ranks, "--pipe", pipe, "--config", config(1, optimizer=STILL), "--data", text,
                       "--max-steps", 1, *TINY, "--sample-tokens", 40)
        return done.stdout.split("-" * 72)[1]

    assert sample(2, 2) == sample(1, 1)


def test_it_says_who_has_what_and_what_cannot_be(text):
    done = capstan("train", "-n", 2, "--pipe", 2, "--config", config(1), "--data", text, "--max-steps", 1, *TINY)
    assert "pipeline: stage 0: embeddings, block" in done.stdout
    done = capstan("train", "-n", 3, "--pipe", 2, "--data", text, *TINY, check=False)
    assert done.returncode == 2 and "3 ranks" in done.stderr and "cannot form groups of 2 (pipeline.stages)" in done.stderr
    assert "where: --pipe 2 (pipeline.stages)" in done.stderr
    mesh = config(1, pipeline={"stages": 2}, tensor_parallel={"autotp_size": 3})
    done = capstan("train", "-n", 4, "--config", mesh, "--data", text, *TINY, check=False)
    assert done.returncode == 2 and "(tensor_parallel.autotp_size)\n" in done.stderr  # not the axis that fits
    done = capstan("train", "-n", 2, "--pipe", 2, "--data", text, *TINY, "--layers", 1, check=False)
    assert done.returncode == 2 and "a model of 1 block has too few for 2 stages" in done.stdout + done.stderr


def test_the_configuration_says_stages_schedule_and_what_is_recomputed(text, tmp_path):
    expected = run(text, tmp_path, ranks=2, pipe=2)
    keys = {"pipeline": {"stages": 2, "activation_checkpoint_interval": 2}, "capstan": {"pipeline_schedule": "gpipe"}}
    metrics = tmp_path / "keys.jsonl"
    done = capstan("train", "-n", 2, "--config", config(1, **keys), "--data", text, "--max-steps", 4, "--metrics", metrics, *TINY)
    assert "pipeline: stage 0: embeddings, block" in done.stdout
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert ([line["loss"] for line in lines if "loss" in line], lines[-1]["validation_loss"]) == expected

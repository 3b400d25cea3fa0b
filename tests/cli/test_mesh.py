"""capstan train on a mesh: stages of a pipeline, ranks that split layers, and ranks that see different data, all at once."""

import json

from test_train_pipeline import STILL, TINY, capstan, config, near, text  # noqa: F401: text is a fixture


def losses(text, folder, name, *words, steps=3, **how):
    metrics = folder / f"{name}.jsonl"
    capstan("train", "--config", config(**how), "--data", text, "--max-steps", steps, "--metrics", metrics, *TINY, *words)
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line], lines[-1]["validation_loss"]


def test_pipe_times_tensor_times_data_trains_as_whole_models_do(text, tmp_path):
    plain = losses(text, tmp_path, "plain", "-n", 2, ranks=2)
    cube = losses(text, tmp_path, "cube", "-n", 8, "--pipe", 2, "--tensor", 2, "--save", tmp_path / "run", ranks=2, stage=2)
    near(cube, plain)
    # Its checkpoint is that of the whole model.
    more = losses(text, tmp_path, "more", "-n", 1, "--resume", tmp_path / "run", steps=4, ranks=1)
    same = losses(text, tmp_path, "same", "-n", 4, "--pipe", 2, "--tensor", 2, "--resume", tmp_path / "run", steps=4, ranks=1)
    near(same, more)
    words = capstan("generate", "-n", 1, tmp_path / "run", "The number", "--max-new-tokens", 4)
    assert "The number" in words.stdout


def test_the_text_at_the_end_is_that_of_the_whole_model(text):
    def sample(*words):
        done = capstan("train", *words, "--config", config(1, optimizer=STILL), "--data", text, "--max-steps", 1, *TINY, "--sample-tokens", 20)
        return done.stdout.split("-" * 72)[1]

    assert sample("-n", 4, "--pipe", 2, "--tensor", 2) == sample("-n", 1)

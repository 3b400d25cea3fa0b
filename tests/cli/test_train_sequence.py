"""capstan train --sequence: ranks with parts of the same sequences, as a user runs it."""

import json

import pytest
from test_train_pipeline import capstan, text  # noqa: F401: text is a fixture

TINY = ["--model", "gpt2-tiny", "--tokens", "64", "--log-every", "1", "--eval-batches", "2", "--dropout", "0"]


def config(stage, **more):
    return json.dumps({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": stage},
                       "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, **more})


def run(text, folder, *words, ranks=1, stage=1, steps=4, **more):
    """The losses of the steps and of the validation at the end, and what was said."""
    metrics = folder / f"{len(list(folder.iterdir()))}.jsonl"
    done = capstan("train", "-n", ranks, "--config", config(stage, **more), "--data", text, "--max-steps", steps,
                   "--metrics", metrics, *TINY, *words)
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line], lines[-1]["validation_loss"], done.stdout


def near(found, expected):
    """Sums over positions are made in another order: equal but for rounding."""
    assert found[0] == pytest.approx(expected[0], rel=1e-4) and found[1] == pytest.approx(expected[1], rel=1e-4)


def test_ranks_that_share_sequences_have_the_losses_of_one_with_the_whole(text, tmp_path):
    expected = run(text, tmp_path, "--sample-tokens", 0)
    assert expected[0][0] > expected[0][-1]
    for stage in (1, 3):
        near(run(text, tmp_path, "--sequence", 2, "--sample-tokens", 0, ranks=2, stage=stage), expected)
    said = run(text, tmp_path, ranks=2, sequence_parallel_size=2)  # the key; and text at the end
    near(said, expected)
    assert said[0] == run(text, tmp_path, ranks=2, sequence_parallel_size=2)[0]  # from run to run


def test_data_times_sequence_and_a_checkpoint_goes_on_without_sharing(text, tmp_path):
    expected = run(text, tmp_path, "--sample-tokens", 0, ranks=2, steps=6)
    saved = tmp_path / "saved"
    found = run(text, tmp_path, "--sequence", 2, "--sample-tokens", 0, "--save", saved, ranks=4, stage=2)
    assert found[0] == pytest.approx(expected[0][:4], rel=1e-4)
    went_on = run(text, tmp_path, "--resume", saved, "--sample-tokens", 0, ranks=2, steps=6)
    assert went_on[0] == pytest.approx(expected[0][4:], rel=1e-4)


def test_pipe_times_sequence(text, tmp_path):
    words = ("--layers", 4, "--sample-tokens", 20)
    near(run(text, tmp_path, "--pipe", 2, "--sequence", 2, *words, ranks=4), run(text, tmp_path, *words))


def test_what_cannot_be_shared_is_said(text):
    def error(*words):
        done = capstan("train", "--data", text, "--max-steps", 1, *TINY, *words, check=False)
        assert done.returncode == 2
        return done.stderr

    for words in (("-n", 3), ("-n", 2, "--no-communication")):  # then each rank is a world of its own
        uneven = error(*words, "--sequence", 2)
        assert "cannot form groups of 2" in uneven and "where: --sequence 2" in uneven
    assert "sequences of 64 tokens cannot be cut into 3 equal parts" in error("-n", 3, "--sequence", 3)
    heads = error("-n", 4, "--sequence", 4, "--heads", 2)
    assert "2 attention heads cannot be shared equally by 4 ranks" in heads and "of 1 or 2" in heads
    both = error("-n", 4, "--sequence", 2, "--tensor", 2)
    assert "cannot share sequences" in both and "not both" in both

"""capstan train with a curriculum, and with layers that are dropped, as a user runs it."""

import json

import pytest
from test_train_pipeline import capstan, text  # noqa: F401: text is a fixture

TINY = ["--model", "gpt2-tiny", "--layers", "4", "--tokens", "64", "--log-every", "1", "--eval-batches", "2", "--sample-tokens", "0"]
SHORT_FIRST = {"enabled": True, "curriculum_type": "seqlen", "min_difficulty": 8, "max_difficulty": 64,
               "schedule_type": "fixed_linear", "schedule_config": {"total_curriculum_step": 6, "difficulty_step": 8}}
LENGTHS = [16, 24, 32, 40, 48, 64, 64, 64]
DROPS = {"enabled": True, "theta": 0.1, "gamma": 1.0}


def run(text, folder, *words, ranks=1, steps=8, stage=1, **more):
    """The lines of the steps, and what was said."""
    given = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
             "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}, **more}
    metrics = folder / f"{len(list(folder.iterdir()))}.jsonl"
    capstan("train", "-n", ranks, "--config", json.dumps(given), "--data", text, "--max-steps", steps, "--metrics", metrics, *TINY,
            *words)
    return [line for line in map(json.loads, metrics.read_text().splitlines()) if "loss" in line]


def losses(lines):
    return [line["loss"] for line in lines]


def test_sequences_grow_with_the_curriculum_and_a_run_that_goes_on_has_the_same(text, tmp_path):
    expected = run(text, tmp_path, curriculum_learning=SHORT_FIRST)
    assert [line["sequence_tokens"] for line in expected] == LENGTHS
    assert losses(expected)[0] != losses(run(text, tmp_path, steps=1))[0]  # fewer tokens, another mean
    saved = tmp_path / "saved"
    run(text, tmp_path, "--save", saved, steps=3, curriculum_learning=SHORT_FIRST)
    on = run(text, tmp_path, "--resume", saved, ranks=2, stage=3, curriculum_learning=SHORT_FIRST)
    assert [line["sequence_tokens"] for line in on] == LENGTHS[3:]
    assert losses(on) == pytest.approx(losses(expected)[3:], rel=1e-4)


def test_reshaped_sequences_have_the_loss_of_all_tokens_in_short_sequences(text, tmp_path):
    """Of a length that divides 64, the first step's loss is that of a run with so short sequences on the same text."""
    short = {**SHORT_FIRST, "schedule_type": "fixed_discrete", "schedule_config": {"difficulty": [16, 64], "max_step": [1]}}
    reshaped = run(text, tmp_path, "--no-shuffle", steps=2, curriculum_learning=short, capstan={"curriculum_cut": "reshape"})
    assert [line["sequence_tokens"] for line in reshaped] == [16, 64]
    always_short = run(text, tmp_path, "--no-shuffle", "--tokens", 16, steps=1, train_batch_size=32, train_micro_batch_size_per_gpu=8)
    assert losses(reshaped)[0] == pytest.approx(losses(always_short)[0], rel=1e-5)
    cut = run(text, tmp_path, "--no-shuffle", steps=1, curriculum_learning=short)
    assert losses(cut)[0] != pytest.approx(losses(reshaped)[0], rel=1e-5)


def test_pipelines_and_shared_sequences_follow_the_curriculum(text, tmp_path):
    expected = losses(run(text, tmp_path, steps=4, curriculum_learning=SHORT_FIRST))
    for words in (("--pipe", 2), ("--sequence", 2)):
        found = run(text, tmp_path, *words, ranks=2, steps=4, curriculum_learning=SHORT_FIRST)
        assert losses(found) == pytest.approx(expected, rel=1e-4)


def test_dropped_layers_are_the_same_at_every_stage_on_every_rank_and_after_a_restart(text, tmp_path):
    plain = losses(run(text, tmp_path))
    expected = run(text, tmp_path, progressive_layer_drop=DROPS)
    assert losses(expected)[:2] == plain[:2]  # theta is 1 for two steps
    assert losses(expected)[3:] != plain[3:]
    assert expected[0]["theta"] == 1 and expected[-1]["theta"] == pytest.approx(0.1, abs=0.01)
    assert all(line["loss"] == line["loss"] for line in expected)
    for ranks, stage, words in ((2, 0, ()), (2, 3, ()), (2, 1, ("--tensor", 2))):
        found = run(text, tmp_path, *words, ranks=ranks, stage=stage, progressive_layer_drop=DROPS)
        assert losses(found) == pytest.approx(losses(expected), rel=1e-4)
    again = run(text, tmp_path, stage=3, progressive_layer_drop=DROPS, capstan={"recompute": True})
    assert losses(again) == pytest.approx(losses(expected), rel=1e-4)
    saved = tmp_path / "saved"
    run(text, tmp_path, "--save", saved, steps=5, progressive_layer_drop=DROPS)
    on = run(text, tmp_path, "--resume", saved, progressive_layer_drop=DROPS)
    assert losses(on) == losses(expected)[5:]


@pytest.mark.parametrize("words, section, expected", [
    ((), {"curriculum_learning": {**SHORT_FIRST, "schedule_type": "custom"}}, "a custom curriculum is a function"),
    ((), {"curriculum_learning": {**SHORT_FIRST, "max_difficulty": 4}}, "max_difficulty 4 is below min_difficulty 8"),
    (("--sequence", 2, "-n", 2), {"curriculum_learning": {**SHORT_FIRST, "max_difficulty": 63}}, "must have 2 equal parts"),
    (("--pipe", 2, "-n", 2), {"progressive_layer_drop": DROPS}, "layers of a pipeline cannot be dropped"),
    ((), {"progressive_layer_drop": {"enabled": True, "theta": 2}}, "theta"),
])
def test_what_cannot_work_is_said_before_a_rank_starts(text, tmp_path, words, section, expected):
    given = {"train_batch_size": 8, **section}
    done = capstan("train", "--config", json.dumps(given), "--data", text, "--max-steps", 1, *TINY, *words, check=False)
    assert done.returncode == 2 and expected in done.stderr
    if not words and "theta" not in expected and "custom" not in expected:
        done = capstan("config", "check", json.dumps(given), check=False)
        assert done.returncode == 2 and expected in done.stderr

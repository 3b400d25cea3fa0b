"""capstan train --tensor as a user runs it: ranks that split every layer between them."""

import json

import pytest
from test_train import TINY, config, read_metrics, text, train  # noqa: F401: text is a fixture

QUIET = [*TINY, "--sample-tokens", 0]


def losses_of(metrics):
    steps, validations = read_metrics(metrics)
    return [line["loss"] for line in steps], [line["validation_loss"] for line in validations]


def close(values, others):
    return len(values) == len(others) and all(abs(a - b) < 1e-3 * abs(b) for a, b in zip(values, others))


def test_ranks_that_share_a_model_train_as_whole_models_do_and_go_on_from_each_others_checkpoints(text, tmp_path):
    def run(name, *words, steps):
        metrics = tmp_path / f"{name}.jsonl"
        train("--config", config(), "--data", text, "--max-steps", steps, "--metrics", metrics, *QUIET, *words)
        return losses_of(metrics)

    plain, plain_validation = run("plain", "-n", 2, "--save", tmp_path / "plain", "--save-every", 3, steps=6)
    split, split_validation = run("split", "-n", 4, "--tensor", 2, "--save", tmp_path / "split", steps=3)
    assert close(split, plain[:3])
    # Different only by rounding, which is not nothing: they are no copies of one run.
    assert split != plain[:3]
    gone_on, validation = run("whole", "-n", 2, "--resume", tmp_path / "split", steps=6)
    assert close(gone_on, plain[3:]) and close(validation, plain_validation)
    latest = json.loads((tmp_path / "split" / "global_step3" / "config.json").read_text())
    assert latest["model_type"] == "gpt2"
    gone_on, validation = run("four", "-n", 4, "--config", config(stage=1, tensor_parallel={"autotp_size": 4}, micro=8),
                              "--resume", tmp_path / "split", steps=6)
    assert close(gone_on, plain[3:])


def test_dropout_is_the_same_in_every_run(text, tmp_path):
    def run(name):
        metrics = tmp_path / f"{name}.jsonl"
        train("-n", 2, "--tensor", 2, "--dropout", 0.2, "--config", config(), "--data", text, "--max-steps", 4, "--metrics", metrics,
              *TINY)
        return losses_of(metrics)

    assert run("first") == run("second")


@pytest.mark.parametrize("words, said", [
    (["-n", 2, "--tensor", 3], "cannot form groups of 3 (tensor_parallel.autotp_size)"),
    (["-n", 3, "--tensor", 3, "--heads", 2], "2 attention heads cannot be shared by 3 tensor ranks")])
def test_sizes_that_do_not_fit_are_named(text, tmp_path, words, said):
    done = train(*words, "--config", config(), "--data", text, "--max-steps", 1, *QUIET, check=False)
    assert done.returncode != 0
    assert said in done.stdout + done.stderr

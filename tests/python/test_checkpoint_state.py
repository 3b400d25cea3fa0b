"""What a script may put into a checkpoint beside the model: values that nothing has to be run for."""

import json
import math
from collections import Counter

import numpy as np
import pytest
import ranks
import torch

import capstan

deepspeed = pytest.importorskip("deepspeed", reason="needs the package deepspeed")
state = pytest.importorskip("deepspeed.runtime.checkpoint_state", reason="needs the package deepspeed")


def round_trip(value):
    packer = state.Packer()
    text = packer.text(value, "client_state")
    tensors = dict(packer.tensors)
    assert len(tensors) == len(packer.tensors)
    return text, state.unpack(text, tensors.__getitem__)


def test_plain_values_stay_plain_json():
    value = {"epoch": 3, "best": [0.5, None, True], "name": {"of": "run"}}
    text, back = round_trip(value)
    assert json.loads(text) == value and back == value


@pytest.mark.parametrize("value", [(1, (2,)), {7: "a number as a key", (1, 2): 3}, {"$tensor": "a mark as a key"},
                                   {1, 2}, math.inf, Counter({3: 2}), [{"a": ()}], 10**40, -2**63 - 1, [2**63, 2**63 - 1],
                                   {10**30: -10**5000}, "ü\0", ["日本"]], ids=lambda value: type(value).__name__)
def test_what_json_has_no_word_for_comes_back_as_it_was(value):
    back = round_trip(value)[1]
    assert back == value and type(back) is type(value)


def test_tensors_and_arrays_come_back():
    value = {"t": torch.arange(3), "deep": [{"a": np.eye(2, dtype=np.float32)}], "x": np.float64(0.1), "n": math.nan}
    back = round_trip(value)[1]
    assert torch.equal(back["t"], torch.arange(3)) and np.array_equal(back["deep"][0]["a"], np.eye(2))
    assert type(back["x"]) is np.float64 and back["x"] == 0.1 and math.isnan(back["n"])


@pytest.mark.parametrize("bad", [torch.nn.Linear(1, 1), print, np.array([object()])], ids=["module", "function", "objects"])
def test_anything_else_is_refused_by_its_key(bad):
    with pytest.raises(capstan.ConfigError) as error:
        state.Packer().text({"epoch": 1, "model": {"inner": bad}}, "client_state")
    assert "'model'" in str(error.value) and "'inner'" in str(error.value) and error.value.fix


def test_what_cannot_be_stored_is_told_by_its_place():
    loop, deep = [1, {"a": []}], []
    loop[1]["a"].append(loop)
    for _ in range(5000):
        deep = [deep]
    for value, words in ((loop, ["contains itself", "key 'x'", "[1], key 'a'[0]"]), (deep, ["nested deeper than 100 levels", "[0][0]"]),
                         ("\ud800", ["surrogate pair", "key 'x'"])):
        with pytest.raises(capstan.ConfigError) as error:
            state.Packer().text({"x": value}, "client_state")
        assert all(word in str(error.value) for word in words) and error.value.fix, str(error.value)
    shared = [1]
    assert round_trip([shared, shared])[1] == [[1], [1]]  # twice is not in itself


def large_client_state(folder):
    deep = 7
    for _ in range(90):
        deep = [deep]
    client = {"numbers": list(range(500_000)), "deep": deep, "big": 10**40}
    config = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "Adam"}}
    engine, *_ = deepspeed.initialize(model=torch.nn.Linear(2, 2), config=config)
    engine.save_checkpoint(folder, client_state=client)
    return engine.load_checkpoint(folder)[1] == client


# In the index every number would be looked for on a line of megabytes, and its reader takes 64 levels.
def test_a_client_state_of_half_a_million_numbers_is_saved_and_loads(tmp_path):
    assert all(ranks.run(2, large_client_state, tmp_path))
    assert (tmp_path / "global_step0" / "state.client_state.json").stat().st_size > 3_000_000
    assert (tmp_path / "global_step0" / "index.json").stat().st_size < 100_000

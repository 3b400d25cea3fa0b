"""What a script may put into a checkpoint beside the model: values that nothing has to be run for."""

import json
import math
from collections import Counter

import numpy as np
import pytest
import torch

import capstan

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
                                   {1, 2}, math.inf, Counter({3: 2}), [{"a": ()}]], ids=str)
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

"""What a script may put into a checkpoint beside the model: values that nothing has to be run for."""

import pickle

import numpy as np
import pytest
import torch

import capstan

state = pytest.importorskip("deepspeed.runtime.checkpoint_state", reason="needs the package deepspeed")


def round_trip(value, folder):
    text, files = state.to_text(value, "client_state.pt")
    for name, content in files:
        (folder / name).write_bytes(content)
    return state.from_text(text, str(folder), "client_state.pt")


def test_plain_values_stay_text(tmp_path):
    assert round_trip({"epoch": 3, "best": [0.5, None]}, tmp_path) == {"epoch": 3, "best": [0.5, None]}
    assert not list(tmp_path.iterdir())


def test_tensors_and_arrays_come_back(tmp_path):
    back = round_trip({"t": torch.arange(3), "a": np.eye(2, dtype=np.float32), 7: "number as a key"}, tmp_path)
    assert torch.equal(back["t"], torch.arange(3)) and np.array_equal(back["a"], np.eye(2)) and back[7]


def test_anything_else_is_refused_by_its_key():
    with pytest.raises(capstan.ConfigError) as error:
        state.to_text({"epoch": 1, "model": torch.nn.Linear(1, 1)}, "client_state.pt")
    assert "'model'" in str(error.value) and error.value.fix


class Evil:

    def __reduce__(self):
        return (print, ("run",))


def test_a_file_cannot_make_us_run_anything(tmp_path):
    torch.save({"x": Evil()}, tmp_path / "client_state.pt")
    with pytest.raises(pickle.UnpicklingError):
        state.from_text("null", str(tmp_path), "client_state.pt")

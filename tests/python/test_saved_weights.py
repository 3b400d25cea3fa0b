"""Weights that leave an engine: save_16bit_model, and fp32 weights out of checkpoints, with tied and frozen ones."""

import os
import subprocess
import sys

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import nn

import capstan

deepspeed = pytest.importorskip("deepspeed", reason="needs the package deepspeed")

from deepspeed.utils import zero_to_fp32  # noqa: E402


class Model(nn.Module):
    """Tied and frozen weights, a buffer, and a state of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.tied, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.tied.weight = self.last.weight
        self.first.requires_grad_(False)
        self.register_buffer("scale", torch.full((2,), 3.0))

    def forward(self, x):
        return self.last(self.tied(self.first(x)))


class Counting(nn.Linear):
    """Has a state that is neither parameter nor buffer."""

    def __init__(self):
        super().__init__(6, 6)
        self.calls, self.seen = 0, torch.zeros(2)

    def forward(self, x):
        self.calls += 1
        self.seen = self.seen + x.flatten()[:2].detach().float()
        return super().forward(x)

    def get_extra_state(self):
        return {"calls": self.calls, "seen": self.seen}

    def set_extra_state(self, state):
        self.calls, self.seen = state["calls"], state["seen"]


class Odd(nn.Identity):

    def get_extra_state(self):
        return object()


def state_dicts():
    """Of the engine: whole tensors, or an error that says what to call; never empty ones."""
    whole, engine = make(2).state_dict(), make(3)
    with pytest.raises(capstan.ConfigError, match=r"(?s)'first.weight' is sharded.*whole_weights"):
        engine.state_dict()
    with capstan.gathered(engine.module):
        state = {name: value.clone() for name, value in engine.state_dict().items()}
    assert set(state) == set(whole) == {f"module.{name}" for name in ALL}
    assert all(torch.equal(value, whole[name]) for name, value in state.items())
    assert set(engine.state_dict(keep_vars=True)) == set(whole)  # the parameters themselves
    again = engine.module_state_dict()
    assert all(torch.equal(again[name], whole[f"module.{name}"]) for name in ALL)


def test_a_state_dict_of_an_engine_has_values_or_is_refused():
    ranks.run(2, state_dicts)


TRAINED = {"tied.weight", "tied.bias", "last.weight", "last.bias"}
ALL = TRAINED | {"first.weight", "first.bias", "scale"}


def make(stage, **zero):
    torch.manual_seed(0)
    model = Model()
    config = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
              "bf16": {"enabled": True}, "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0, **zero}}
    engine, *_ = deepspeed.initialize(model=model, model_parameters=[p for p in model.parameters() if p.requires_grad],
                                      config=config)
    for _ in range(2):
        engine.backward(engine(torch.ones(2, 6).bfloat16()).float().square().mean())
        engine.step()
    return engine


def save(folder, stage):
    """Everything in its ways; this rank's view of the trained values."""
    engine = make(stage)
    masters = {name: deepspeed.utils.safe_get_full_fp32_param(p) for name, p in engine.module.named_parameters()
               if p.requires_grad}
    assert engine.save_16bit_model(folder)  # at stage 3 also without its key
    assert engine.save_16bit_model(folder, "trained.bin", exclude_frozen_parameters=True)
    engine.save_checkpoint(f"{folder}/all")
    plain = engine.module.state_dict
    engine.module.state_dict = lambda *args, **more: {name: value for name, value in plain(*args, **more).items()
                                                      if name != "first.weight"}
    engine.save_checkpoint(f"{folder}/trained", exclude_frozen_parameters=True)
    return masters


@pytest.mark.parametrize("stage", [1, 3])
def test_every_file_has_what_it_should_and_loads(tmp_path, stage):
    masters, _ = ranks.run(2, save, str(tmp_path), stage)
    whole, trained = (torch.load(tmp_path / name) for name in ("pytorch_model.bin", "trained.bin"))
    assert whole.keys() == ALL and trained.keys() == TRAINED | {"scale"}
    assert whole["last.weight"].dtype == torch.bfloat16
    for name, value in masters.items():
        assert torch.equal(whole[name], value.bfloat16()) and torch.equal(trained[name], value.bfloat16())
    assert whole["tied.weight"].data_ptr() == whole["last.weight"].data_ptr()
    for checkpoint, left_out, names in (("all", False, ALL), ("all", True, TRAINED | {"scale"}),
                                        ("trained", False, TRAINED | {"scale"})):
        read = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(tmp_path / checkpoint,
                                                                     exclude_frozen_parameters=left_out)
        out = tmp_path / f"{checkpoint} {left_out}"
        zero_to_fp32.convert_zero_checkpoint_to_fp32_state_dict(tmp_path / checkpoint, out,
                                                                exclude_frozen_parameters=left_out)
        written = torch.load(out / "pytorch_model.bin")
        for state in (read, written):
            assert state.keys() == names and state["tied.weight"] is state["last.weight"]
            assert all(torch.equal(state[name], value) for name, value in masters.items())
            missing, unexpected = Model().load_state_dict(state, strict=names == ALL)
            assert set(missing) == ALL - names and not unexpected
        assert os.listdir(out) == ["pytorch_model.bin"]
        model = zero_to_fp32.load_state_dict_from_zero_checkpoint(Model(), tmp_path / checkpoint)
        assert torch.equal(model.last.weight, masters["tied.weight"]) and model.tied.weight is model.last.weight


def test_the_script_beside_a_checkpoint_says_what_it_wrote(tmp_path):
    ranks.run(1, save, str(tmp_path), 1)
    script = tmp_path / "all" / "zero_to_fp32.py"
    assert os.access(script, os.X_OK)
    done = subprocess.run([sys.executable, script, tmp_path / "all", tmp_path / "out", "--max_shard_size", "150"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    assert done.returncode == 0 and ": 7 tensors, " in done.stdout.splitlines()[0], done.stdout
    files = sorted(os.listdir(tmp_path / "out"))
    parts = [torch.load(tmp_path / "out" / name) for name in files if name.endswith(".bin")]
    assert len(parts) > 1 and files[-1] == "pytorch_model.bin.index.json"
    tied = next(part for part in parts if "tied.weight" in part)
    assert tied["tied.weight"] is tied["last.weight"]  # in one file, whatever its size


def extra_states(folder, stage):
    """Trained, saved and loaded into another model: (calls, what was seen) of both, and what was said."""
    said = []
    deepspeed.utils.logger.addFilter(lambda record: said.append(record.getMessage()) or True)
    found = []
    for step in range(2):
        model = nn.Sequential(Counting(), Odd())
        config = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": stage}}
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        if step == 1:
            engine.load_checkpoint(folder)
        else:
            for _ in range(3):
                engine.backward(engine(torch.ones(2, 6)).sum())
                engine.step()
            engine.save_checkpoint(folder)
        found.append((model[0].calls, model[0].seen.tolist()))
        engine.destroy()
    return found, [line for line in said if "extra state" in line]


@pytest.mark.parametrize("stage", [0, 3])
def test_modules_keep_their_extra_state(tmp_path, stage):
    for found, said in ranks.run(2, extra_states, str(tmp_path), stage):
        assert found == [(3, [3.0, 3.0])] * 2
        assert len(said) == 1 and said[0].startswith("not saved: the extra state of '1'")


def overwrite(folder):
    """A write that fails leaves the older file, nothing beside it, and no rank behind."""
    engine = make(3)
    engine.save_16bit_model(folder)
    before = os.stat(f"{folder}/pytorch_model.bin").st_ino
    real = torch.save

    def broken(state, path):
        real(state, path)
        raise OSError(28, "No space left on device")

    dist.barrier()
    torch.save = broken
    with pytest.raises(capstan.IoError, match="could not be written"):
        engine.save_16bit_model(folder)
    torch.save = real
    assert os.listdir(folder) == ["pytorch_model.bin"]
    assert os.stat(f"{folder}/pytorch_model.bin").st_ino == before
    dist.barrier()
    assert engine.save_16bit_model(folder)
    dist.barrier()
    return os.stat(f"{folder}/pytorch_model.bin").st_ino != before, torch.load(f"{folder}/pytorch_model.bin").keys() == ALL


def test_an_older_file_stays_until_the_new_one_is_whole(tmp_path):
    assert ranks.run(2, overwrite, str(tmp_path)) == [(True, True)] * 2

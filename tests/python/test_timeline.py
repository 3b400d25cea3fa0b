"""capstan.trace: the timeline of an engine in Python."""

import json

import pytest
import ranks
import torch
from torch import nn

import capstan

deepspeed = pytest.importorskip("deepspeed", reason="needs the package deepspeed")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def train(stage, folder, door):
    torch.manual_seed(0)
    config = {"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
              "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
              "capstan": {"units": ["blocks.0", "blocks.1", "blocks.2"], "trace": {"folder": folder, "steps": [2, 3]}}}
    engine = (deepspeed.initialize(model=Net(), config=config)[0] if door == "deepspeed" else capstan.initialize(Net(), config))
    for step in range(4):
        loss = engine(torch.arange(32.0).reshape(4, 8) / 32 + step)
        engine.backward(loss)
        engine.step()
    with capstan.gathered(list(engine.module.parameters())):
        return [p.detach().clone() for p in engine.module.parameters()]


@pytest.mark.parametrize("stage", [0, 1, 3])
@pytest.mark.parametrize("door", ["deepspeed", "capstan"])
def test_two_steps_of_two_ranks_are_drawn_and_no_bit_changes(stage, door, tmp_path):
    plain, drawn = ranks.run(2, train, stage, None, door)[0], ranks.run(2, train, stage, str(tmp_path), door)[0]
    assert all(map(torch.equal, plain, drawn))
    spans = [event for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if event["ph"] == "X"]
    for rank in (0, 1):
        own = [span for span in spans if span["pid"] == rank]
        computed = [(span["name"], span["args"].get("unit")) for span in own if span["cat"] == "compute"]
        for block in ("blocks.0", "blocks.1", "blocks.2"):
            assert computed.count(("forward", block)) == computed.count(("backward", block)) == 2
        assert len([span for span in own if span["name"] == "step"]) == 2
        assert {"reduce", "update"} <= {span["cat"] for span in own}
    assert "exposed:" in (tmp_path / "timeline.html").read_text()


def refused(folder):
    config = {"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW"},
              "capstan": {"trace": {"folder": folder, "steps": [5, 3]}}}
    with pytest.raises(capstan.ConfigError, match="give two whole numbers"):
        capstan.initialize(Net(), config)


def test_steps_that_are_no_range_are_refused(tmp_path):
    ranks.run(1, refused, str(tmp_path))

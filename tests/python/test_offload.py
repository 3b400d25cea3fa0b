"""Wherever state and parameters live, and whenever the update runs, Python sees the same numbers."""

import functools
import gc
import os
from pathlib import Path

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import nn

import capstan
from capstan.optimizers import AdamW


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.Linear(32, 8))


def config(zero, own=None):
    return {"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True}, "gradient_clipping": 0.5,
            "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 10, **zero},
            "capstan": own or {}}


def train(zero, own=None):
    losses = run_steps(zero, own)
    gc.collect()  # a rank of these tests ends without a farewell to its objects
    return losses


def run_steps(zero, own):
    model = make_model()
    engine = capstan.initialize(model, config(zero, own), optimizer=AdamW(model.parameters(), lr=1e-2))
    random = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(4):
        x = torch.randn(4, 16, generator=random).bfloat16()
        loss = engine(x).float().pow(2).mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


CPU = {"device": "cpu"}
WAYS = {
    "early": ({"offload_optimizer": CPU}, {"early_updates": "always"}),
    "measured": ({"offload_optimizer": CPU, "offload_param": CPU}, {"early_updates": "measured"}),
    "super": ({"offload_optimizer": {**CPU, "super_offload": True}}, None),
    "auto": ({"offload_optimizer": {**CPU, "ratio": "auto"}}, {"device_bytes": 20000, "activation_bytes": 0}),
}


@functools.cache
def plain_losses():
    return ranks.run(2, train, {})


@pytest.mark.parametrize("way", WAYS)
def test_overlaps_and_placements_change_no_loss(way):
    assert ranks.run(2, train, *WAYS[way]) == plain_losses()


class BigTable(nn.Module):
    """One token, whose row is the last that an update reaches, goes through a table, a layer, and the table again."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.rows = nn.Embedding(600_000, 32)
        self.layer = nn.Linear(32, 32)
        self.again = nn.Linear(32, 600_000, bias=False)
        self.again.weight = self.rows.weight

    def forward(self, token):
        hidden = self.layer(self.rows(token))
        return (hidden * self.again.weight[token]).sum()


def train_big_table(stage, own, reads=False):
    model = BigTable()
    zero = {"stage": stage, "offload_optimizer": CPU}
    engine = capstan.initialize(model, {"train_micro_batch_size_per_gpu": 1, "zero_optimization": zero, "capstan": own},
                                optimizer=AdamW(model.parameters(), lr=1e-2))
    seen = []
    for _ in range(3):
        loss = engine(torch.tensor([599_999]))
        engine.backward(loss)
        engine.step()
        seen += [loss.item()]
        if reads:
            seen += model.state_dict()["rows.weight"][-1].tolist()
    engine.close()
    return seen + model.rows.weight[-1].tolist()


@pytest.mark.parametrize("reads", [False, True], ids=["forward", "state_dict"])
@pytest.mark.parametrize("stage", [1, 2])
def test_a_late_update_is_waited_for_below_stage_3_too(stage, reads):
    late, waited = ({"late_updates": how} for how in ("always", "never"))
    assert ranks.run(1, train_big_table, stage, late, reads) == ranks.run(1, train_big_table, stage, waited, reads)


def test_disks_change_no_loss_and_nothing_is_left_on_them(tmp_path):
    disk = {"device": "nvme", "nvme_path": str(tmp_path)}
    assert ranks.run(2, train, {"offload_optimizer": disk, "offload_param": disk}) == plain_losses()
    assert os.listdir(tmp_path) == []


def train_annotated(path):
    losses = run_annotated(path)
    gc.collect()  # as in train()
    return losses


def run_annotated(path):
    model = make_model()
    engine = capstan.initialize(model, path)  # which names the optimizer and its schedule
    losses = []
    for _ in range(3):
        loss = engine(torch.ones(4, 16)).float().pow(2).mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def test_the_annotated_configuration_runs_with_only_its_path_changed(tmp_path):
    text = (Path(os.environ["CAPSTAN_SOURCE"]) / "tests/config/snippets/annotated.hjson").read_text()
    losses = {}
    for device in ("none", "nvme"):
        path = tmp_path / f"{device}.hjson"
        path.write_text(text.replace('"none"', f'"{device}"').replace("/local_nvme", str(tmp_path / "disk")))
        losses[device] = ranks.run(2, train_annotated, str(path))
    assert losses["nvme"] == losses["none"] and len(losses["nvme"][0]) == 3
    assert os.listdir(tmp_path / "disk") == []


def evaluate(folder, optimizer=None):
    model = make_model()
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(x).clone()
    zero = {"stage": 3, "stage3_param_persistence_threshold": 10,
            "offload_param": {"device": "nvme", "nvme_path": folder}}
    if optimizer:  # a training configuration, as it is
        zero["offload_optimizer"] = {"device": optimizer, "nvme_path": folder}
    engine = capstan.initialize(model, {"train_micro_batch_size_per_gpu": 4, "zero_optimization": zero})
    held = os.listdir(folder)
    with torch.no_grad():
        return len(held) > 0 and all(torch.equal(engine(x), expected) for _ in range(3))


def test_a_model_without_an_optimizer_is_evaluated_from_a_disk(tmp_path):
    assert all(ranks.run(2, evaluate, str(tmp_path)))
    assert all(ranks.run(2, evaluate, str(tmp_path), "nvme"))

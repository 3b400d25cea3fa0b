"""Modules that are attached to a model when an engine has it already."""

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import nn

import capstan

deepspeed = pytest.importorskip("deepspeed", reason="needs the package deepspeed")


class Model(nn.Module):

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8, bias=False)
        self.late = None

    def forward(self, x):
        x = self.fc(x)
        return x if self.late is None else self.late(x)


def train(stage, attach):
    """What is said, and the loss of each step."""
    torch.manual_seed(0)
    model, said = Model(), []
    config = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
              "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}}
    deepspeed.utils.logger.addFilter(lambda record: said.append(record.getMessage()) or True)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    other = nn.Sequential()
    other.fc = nn.Linear(2, 2)  # somebody else's
    attach(engine.module)
    losses = []
    for _ in range(3):
        loss = engine(torch.ones(2, 8) * (1 + dist.get_rank())).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    told = [line for line in said if "after initialize()" in line]
    engine.destroy()
    model.later = nn.Linear(2, 2)
    assert type(model.fc._parameters) is dict
    return told, losses


def trained(model):
    model.late = nn.Linear(8, 8)


def frozen(model):
    model.late = nn.Linear(8, 8)
    model.late.requires_grad_(False)


def shared(model):
    """It reads a parameter of the engine's, which is sharded between its uses."""
    late = nn.Linear(8, 8, bias=False)
    late.weight = model.fc.weight
    model.late = nn.Sequential(nn.Identity(), late)


def parameter(model):
    model.fc.bias = nn.Parameter(torch.zeros(8))


def attach_all():
    told = {}
    for attach in (trained, frozen, shared, parameter):
        results = [train(stage, attach) for stage in (0, 1, 3)]
        assert all(losses == results[0][1] and losses[-1] < losses[0] for _, losses in results), (attach, results)
        assert all(said == results[0][0] for said, _ in results)
        told[attach.__name__] = results[0][0]
    return told


def test_what_is_attached_late_works_at_every_stage_and_what_is_not_trained_is_said_once():
    for told in ranks.run(2, attach_all):
        assert told["frozen"] == told["shared"] == []
        assert len(told["trained"]) == 1 and "late.weight, late.bias." in told["trained"][0]
        assert len(told["parameter"]) == 1 and "fc.bias" in told["parameter"][0]


def drop():
    """Nothing of torch's keeps an engine alive that was dropped."""
    import gc
    import weakref
    engine = capstan.initialize(Model(), {"train_batch_size": 1, "zero_optimization": {"stage": 3}})
    gone = weakref.ref(engine)
    del engine
    gc.collect()
    return gone() is None


def test_a_dropped_engine_ends():
    assert ranks.run(1, drop) == [True]

"""Copies and pickles of models that an engine has, and models whose parameters were exchanged under it."""

import copy
import io
import pickle

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import nn
from weights import values

import capstan

WIDTH = 8


def make(stage, model=None, bf16=False):
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 2))
    config = {"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": bf16},
              "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}}
    return capstan.initialize(model, config, optimizer=capstan.optimizers.AdamW(model.parameters(), lr=1e-2))


def batch(step):
    return torch.linspace(-1, 1, 2 * WIDTH).view(2, WIDTH) * (1 + step + dist.get_rank())


def train(engine, steps=2):
    losses = []
    for step in range(steps):
        loss = engine(batch(step)).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def copies(stage):
    engine = make(stage)
    train(engine)
    expected = values(engine.module)
    plain = copy.deepcopy(engine.module)
    with capstan.gathered(engine.module):
        pickled = pickle.loads(pickle.dumps(engine.module))
        stored = io.BytesIO()
        torch.save(engine.module, stored)
    stored.seek(0)
    found = [plain, pickled, torch.load(stored, weights_only=False)]
    alone = [type(p) is nn.Parameter for each in found for p in each.parameters()]
    outputs = [each(batch(0)) for each in found]
    with torch.no_grad():
        outputs.append(engine(batch(0)))
    train(engine)  # the copies stay as they are
    second = make(stage, model=plain)
    return {"values": all(same(each.parameters(), expected) for each in found[1:]), "alone": all(alone),
            "outputs": all(torch.allclose(each, outputs[0], atol=1e-5) for each in outputs),
            "again": train(second) == train(make(stage, model=pickled))}


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_copy_of_the_model_is_whole_and_belongs_to_no_engine(stage):
    for found in ranks.run(2, copies, stage):
        assert all(found.values()), found


def refusals():
    engine = make(3)
    told = []
    for act in (lambda: copy.deepcopy(engine), lambda: pickle.dumps(engine), lambda: pickle.dumps(engine.module),
                lambda: make(3, model=engine.module)):
        with pytest.raises((capstan.ConfigError, RuntimeError)) as error:
            act()
        told.append(str(error.value))
    losses = train(engine)
    engine.close()
    with pytest.raises(capstan.ConfigError) as error:
        engine.zero_grad()
    told.append(str(error.value))
    return told, losses == train(make(3))


def test_what_cannot_be_copied_or_taken_is_said_and_harms_nothing():
    for told, unharmed in ranks.run(1, refusals):
        for text, expected in zip(told, ("cannot be copied", "cannot be copied", "capstan.gathered()", "another engine",
                                         "is closed"), strict=True):
            assert expected in text
        assert unharmed


def exchanged(stage):
    """Values that are assigned are those that training goes on with, as if they had been written in place."""
    assigned, written = make(stage), make(stage)
    for step in range(3):
        for engine in (assigned, written):
            for p in engine.module.parameters():
                if engine is assigned:
                    p.data = p.data * 0.5
                else:
                    p.data.mul_(0.5)
                    engine.core.write_param(engine.view.index[id(p)], p.data.clone())
        if train(assigned, 1) != train(written, 1):
            return step
    return same(values(assigned.module), values(written.module))


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_values_that_are_assigned_are_trained(stage):
    assert ranks.run(2, exchanged, stage) == [True, True]


def converted(stage):
    engine, other = make(stage), make(stage)
    engine.module.bfloat16()
    engine.backward(engine(batch(0).bfloat16()).float().square().mean())
    with pytest.raises(capstan.ConfigError, match="is now BFloat16") as error:
        engine.step()
    engine.module.float()  # values rounded on the way
    engine.zero_grad()
    before = values(engine.module)
    losses, expected = train(engine), train(other)
    trained = not any(torch.equal(a, b) for a, b in zip(values(engine.module), before))
    return error.value.where, error.value.fix, trained and losses == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("stage", [0, 2])
def test_a_model_that_is_converted_under_an_engine_is_an_error_that_tells_how(stage):
    for where, fix, goes_on in ranks.run(2, converted, stage):
        assert where == "0.weight" and "before you create the engine" in fix and goes_on

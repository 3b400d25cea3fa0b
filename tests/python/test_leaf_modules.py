"""Modules that are gathered whole, with all that is below them, so that ranks may use different parts of one."""

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import nn

deepspeed = pytest.importorskip("deepspeed", reason="needs the package deepspeed")

from deepspeed.utils import get_z3_leaf_modules, set_z3_leaf_modules, unset_z3_leaf_modules, z3_leaf_module  # noqa: E402


class Choice(nn.Module):
    """Each rank computes with another one of its two parts."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return (self.left if dist.get_rank() == 0 else self.right)(x)


class Model(nn.Module):

    def __init__(self):
        super().__init__()
        self.first, self.choice, self.last = nn.Linear(8, 8), Choice(), nn.Linear(8, 8)

    def forward(self, x):
        return self.last(self.choice(self.first(x)))


def config(stage, leaf=None):
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0, **({"leaf_module": leaf} if leaf else {})}
    return {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
            "zero_optimization": zero}


def train(stage, mark=None, leaf=None):
    torch.manual_seed(0)
    model = Model()
    if mark is not None:
        mark(model)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config(stage, leaf))
    units = [name for name, used in engine.core.boundaries() if used and name]
    losses = []
    for step in range(3):
        loss = engine(torch.ones(2, 8) + step).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    assert z3_leaf_module(model.choice) == (stage == 3)
    assert stage != 3 or units == ["first", "choice", "last"], units
    return losses


class Nested(nn.Module):
    """Lists in a list, whose members the model calls one by one, and a module that has another method than forward."""

    class Encoder(nn.Module):

        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def encode(self, x):
            return self.inner(x)

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.ModuleList([nn.Linear(8, 8), nn.LayerNorm(8)]) for _ in range(3)])
        self.encoders = nn.ModuleList([Nested.Encoder() for _ in range(2)])
        self.most = 0

    def forward(self, x):
        for linear, norm in self.layers:
            x = x + norm(linear(x))
            self.count()
        for encoder in self.encoders:
            x = encoder.encode(x)
            self.count()
        return x

    def count(self):
        from deepspeed.zero import ZeroParamStatus
        self.most = max(self.most, sum(p.ds_status == ZeroParamStatus.AVAILABLE for p in self.parameters()))


def nested():
    torch.manual_seed(0)
    model = Nested()
    zero = {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 0}}
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={**config(3), **zero})
    engine.backward(engine(torch.ones(2, 8)).square().mean())
    engine.step()
    return [name for name, used in engine.core.boundaries() if used and name], model.most


def test_what_is_never_called_is_no_unit():
    names = [f"layers.{i}.{j}" for i in range(3) for j in range(2)] + [f"encoders.{i}.inner" for i in range(2)]
    for units, most in ranks.run(2, nested):
        assert units == names and most <= 2  # outside of its unit nothing stays whole but the last


MARKS = [lambda model: set_z3_leaf_modules(model, [Choice]), lambda model: set_z3_leaf_modules(model, Choice),
         lambda model: set_z3_leaf_modules(model, ["Choice"]), lambda model: set_z3_leaf_modules(model, "Choice")]
LEAVES = [{"classes": "Choice"}, {"classes": ["Choice"]}, {"names": "choice"}, {"names": ["choice"]},
          {"name_suffixes": "oice"}]


def train_all():
    expected = train(0)
    for mark in MARKS:
        assert train(3, mark=mark) == expected
    for leaf in LEAVES:
        assert train(3, leaf=leaf) == expected, leaf


def test_ranks_may_use_different_parts_of_a_leaf_which_one_name_or_a_list_chooses():
    ranks.run(2, train_all)


def test_marks_are_set_found_and_taken_back():
    model = Model()
    assert set_z3_leaf_modules(model, [nn.Linear]) == [model.first, model.choice.left, model.choice.right, model.last]
    assert unset_z3_leaf_modules(model, nn.Linear) and get_z3_leaf_modules(model) == []
    with pytest.raises(ValueError, match="Conv2d"):
        set_z3_leaf_modules(model, [nn.Conv2d])


def test_the_section_as_an_object_takes_one_string():
    pytest.importorskip("pydantic", reason="needs the package pydantic")
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    leaf = DeepSpeedZeroConfig(leaf_module={"classes": "a.B", "names": "c", "name_suffixes": "d"}).leaf_module
    assert (leaf.classes, leaf.names, leaf.name_suffixes) == (["a.B"], ["c"], ["d"])


def name_what_is_not_there():
    model = Model()
    with pytest.raises(Exception, match="where: zero_optimization.leaf_module.names"):
        deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config(3, {"names": ["nowhere"]}))
    with pytest.raises(Exception, match="where: capstan.units"):
        deepspeed.initialize(model=model, model_parameters=model.parameters(),
                             config={**config(3), "capstan": {"units": ["nowhere"]}})


def test_a_module_that_is_not_there_is_refused_by_the_name_of_its_key():
    ranks.run(1, name_what_is_not_there)

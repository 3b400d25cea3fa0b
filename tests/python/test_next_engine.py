"""A model whose engine was closed keeps its values, sharded or not, and a next engine goes on with them."""

import contextlib
import copy
import ctypes
import datetime
import gc

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import nn

import capstan

WIDTH = 8


class Block(nn.Module):
    """Three parameters in a unit, none of which ends where a shard does."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return x + self.down(self.up(x).tanh())


def build():
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), nn.Linear(WIDTH, 2))


def make(model, stage, zero=None, **more):
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0, **(zero or {})}
    config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": zero, **more}
    return capstan.initialize(model, config, optimizer=capstan.optimizers.AdamW(model.parameters(), lr=1e-2))


def train(engine, steps=2):
    losses = []
    for step in range(steps):
        batch = torch.linspace(-1, 1, 2 * WIDTH).view(2, WIDTH) * (1 + step + dist.get_rank())
        loss = engine(batch.to(engine.param_dtype)).float().square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def values(model):
    with capstan.gathered(model):
        return [p.detach().clone() for p in model.parameters()]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def continued(stages, more, zero):
    """Losses of engines that follow each other, and the values that each left; `zero` is for stage 3."""
    model, losses, left = build(), [], []
    for stage in stages:
        engine = make(model, stage, zero=zero if stage == 3 else {}, **more)
        losses.append(train(engine))
        at_close = values(model)
        engine.close()
        left.append(values(model))
        assert same(left[-1], at_close)
    return losses, left


def as_at_stage_0(more, zero):
    expected = continued([0, 0, 0], more, zero)
    for stages in ([3, 3, 3], [3, 0, 3], [3, 2, 1]):
        losses, left = continued(stages, more, zero)
        assert losses == expected[0], stages
        assert all(same(*pair) for pair in zip(left, expected[1], strict=True)), stages


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("bf16", [False, True])
def test_engines_that_follow_each_other_train_as_at_stage_0(world, bf16):
    ranks.run(world, as_at_stage_0, {"bf16": {"enabled": bf16}}, {})


def test_a_model_of_which_some_parameters_stay_whole_goes_on_as_well():
    ranks.run(2, as_at_stage_0, {}, {"stage3_param_persistence_threshold": 3 * WIDTH})


def test_shards_in_host_memory_stay_there():
    host = {"offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}
    ranks.run(2, as_at_stage_0, {"bf16": {"enabled": True}}, host)


def test_shards_on_a_disk_come_to_host_memory(tmp_path):
    disk = {"offload_param": {"device": "nvme", "nvme_path": str(tmp_path)}}
    ranks.run(2, as_at_stage_0, {"bf16": {"enabled": True}}, disk)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def between():
    engine = make(build(), 3)
    train(engine)
    model, expected = engine.module, values(engine.module)
    engine.close()
    assert all(p.shape == (0,) and p.ds_shape == v.shape for p, v in zip(model.parameters(), expected))
    with pytest.raises(RuntimeError, match="0.up.weight"):
        model[0].up.weight.sum()
    plain = copy.deepcopy(model)
    assert same(plain.parameters(), expected) and type(plain[0].up.weight) is nn.Parameter
    with capstan.gathered(model[0].up.weight, modifier_rank=1):
        if dist.get_rank() == 1:
            model[0].up.weight.data.fill_(0.25)
        expected[0].fill_(0.25)
    assert same(values(model), expected)
    second = make(model, 3)
    assert same(values(model), expected)
    assert train(second) == train(make(plain_with(expected), 0))


def plain_with(values_of):
    model = build()
    with torch.no_grad():
        for param, value in zip(model.parameters(), values_of, strict=True):
            param.copy_(value)
    return model


def test_between_two_engines_parameters_are_gathered_written_and_copied():
    ranks.run(2, between)


def apart(drop):
    """Rank 1 closes when rank 0 is through with it."""
    engine = make(build(), 3)
    train(engine)
    model, expected = engine.module, values(engine.module)
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["closed"], datetime.timedelta(seconds=60))
    if drop:
        del engine
        gc.collect()
    else:
        engine.close()
    store.set("closed", "yes")
    return same(values(model), expected) and len(train(make(model, 3)))


@pytest.mark.parametrize("drop", [False, True])
def test_no_rank_waits_for_another_when_it_closes(drop):
    assert ranks.run(2, apart, drop) == [2, 2]


def after_an_error(place):
    """One rank stops in the middle of a forward, or holds the parameters, when it closes."""
    model = build()
    engine = make(model, 3)
    train(engine)
    expected = values(model)

    def fail(*unused):
        raise ArithmeticError

    with contextlib.ExitStack() as stack:
        if place == "held":
            stack.enter_context(capstan.gathered(model))
        else:
            handle = model[1].register_forward_pre_hook(fail)
            with pytest.raises(ArithmeticError):
                engine(torch.ones(2, WIDTH))
            handle.remove()
        engine.close()
    assert same(values(model), expected)
    return train(make(model, 3)) == train(make(plain_with(expected), 0))


@pytest.mark.parametrize("place", ["held", "forward"])
@pytest.mark.parametrize("world", [1, 2])
def test_values_are_kept_wherever_the_engine_was_when_it_was_closed(world, place):
    assert all(ranks.run(world, after_an_error, place))


def lost():
    model = build()
    engine = make(model, 3)
    engine._close()  # as at the end of the program
    with pytest.raises(capstan.ConfigError, match="has no values"):
        make(model, 3)


def test_values_that_nobody_kept_are_an_error():
    ranks.run(1, lost)


def resident_bytes():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # the C library keeps what was freed, more or less of it
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def in_turn(turns):
    model = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 1024))
    sizes = []
    for _ in range(turns):
        engine = make(model, 3)
        engine.backward(engine(torch.ones(2, 1024)).sum())
        engine.step()
        open_bytes = resident_bytes()
        engine.close()
        del engine
        sizes.append((open_bytes, resident_bytes()))
    return sizes


def test_a_closed_engine_keeps_no_more_than_the_shards():
    sizes = ranks.run(1, in_turn, 6)[0]
    shards = 8 * 2**20
    assert sizes[-1][1] - sizes[1][1] < shards  # one engine that stayed would be three times as much
    assert sizes[-1][0] - sizes[-1][1] > shards  # of optimizer state there is twice as much as of parameters

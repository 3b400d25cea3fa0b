"""Parameters that are held whole without a modifier rank may be read, and nobody writes into them unseen."""

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import nn

import capstan

deepspeed = pytest.importorskip("deepspeed", reason="needs the package deepspeed")


def config(threshold, dtype):
    return {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 0.1}},
            "bf16": {"enabled": dtype == torch.bfloat16},
            "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": threshold}}


def in_place(param):
    with torch.no_grad():
        param.add_(1)


def to_data(param):
    param.data[-1] += 1


def other_data(param):
    param.data = param.data + 1


def nothing_new(param):
    with torch.no_grad():
        param.add_(0)


def value(model):
    with capstan.gathered(model):
        return model.weight.data.float().clone()


def expect_error(params, write, writers):
    with pytest.raises(RuntimeError, match="in-place modification") as caught:
        with deepspeed.zero.GatheredParameters(params):
            if dist.get_rank() in writers:
                write(params[0])
    assert isinstance(caught.value, capstan.ConfigError) and "modifier_rank" in caught.value.fix


def write_everywhere():
    """Without an engine, in one that keeps small parameters whole, in one that does not; fp32 and bf16."""
    everybody = range(dist.get_world_size())
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        for threshold in (None, 0, 100000):
            with deepspeed.zero.Init(config_dict_or_path=config(0, dtype)):
                model = nn.Linear(5, 3)
            if threshold is not None:
                engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                                  config=config(threshold, dtype))
            before = value(model)
            for write in (in_place, to_data, other_data, nothing_new):
                for writers in (everybody, [len(everybody) - 1]):
                    expect_error([model.weight, model.bias], write, writers)
                    after = value(model)
                    first = after.clone()
                    dist.broadcast(first, 0)
                    assert torch.equal(after, first), (threshold, write)  # whatever it is, ranks agree
                    alias = len(everybody) == 1 or threshold == 100000  # the shard is a part of the whole
                    assert alias or torch.equal(after, before), (threshold, write)
            if threshold is not None:
                engine.destroy()


@pytest.mark.parametrize("world", [1, 2])
def test_a_write_without_a_modifier_rank_is_an_error_on_all_ranks(world):
    ranks.run(world, write_everywhere)


def allowed():
    """What changes a parameter that is held, and is meant to."""
    torch.manual_seed(0)
    with deepspeed.zero.Init(config_dict_or_path=config(0, torch.float32)):
        model = nn.Linear(5, 3)
    with capstan.gathered(model):
        with capstan.gathered([model.weight, None, nn.Parameter(torch.ones(2))], modifier_rank=0):
            in_place(model.weight)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config(0, torch.float32))
    started = value(model)
    with capstan.gathered(model):
        engine.backward(engine(torch.ones(1, 5)).sum())
        engine.step()
    assert not torch.equal(value(model), started)
    with capstan.gathered(model):
        deepspeed.utils.safe_set_full_fp32_param(model.weight, torch.ones(3, 5))
    with pytest.raises(KeyError):  # what goes wrong inside is told, and nobody waits
        with capstan.gathered(model):
            in_place(model.weight)
            raise KeyError("mine")
    told = {**config(0, torch.float32), "zero_optimization": {"stage": 3, "enable_sanity_checks": False}}
    other = nn.Linear(5, 3)
    engine, *_ = deepspeed.initialize(model=other, model_parameters=other.parameters(), config=told)
    with pytest.warns(UserWarning, match="in-place modification"), capstan.gathered(other):
        in_place(other.weight)
    plain = nn.Linear(2, 2)
    with deepspeed.zero.GatheredParameters(plain.parameters()):
        in_place(plain.weight)
    return value(model)


def test_steps_writes_by_name_and_nested_modifiers_are_none():
    for weight in ranks.run(2, allowed):
        assert torch.equal(weight, torch.ones(3, 5))

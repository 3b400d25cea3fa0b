"""empty_partition_cache(): all parameters are given back, those too that stay whole between uses."""

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import nn
from weights import values

import capstan

deepspeed = pytest.importorskip("deepspeed", reason="needs the package deepspeed")
from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus  # noqa: E402

WIDTH = 16


def make(optimizer, bf16):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH))
    config = {"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": bf16},
              "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": WIDTH}}  # weights are released
    make_optimizer = torch.optim.AdamW if optimizer == "torch" else capstan.optimizers.AdamW
    engine, *_ = deepspeed.initialize(model=model, config=config,
                                      optimizer=make_optimizer(model.parameters(), lr=1e-2))
    return model, engine


def status(model):
    return {p.ds_status for p in model.parameters()}, sum(p.numel() for p in model.parameters())


def train(engine, between=lambda: None):
    losses = []
    dtype = next(engine.module.parameters()).dtype
    for step in range(3):
        between()
        x = torch.full((2, WIDTH), 1.0 + step + dist.get_rank(), dtype=dtype)
        loss = engine(x * torch.linspace(0, 1, WIDTH, dtype=dtype)).float().square().mean()
        between()
        engine.backward(loss)
        between()
        engine.step()
        losses.append(loss.item())
    return losses


def run(optimizer, bf16):
    plain, plain_engine = make(optimizer, bf16)
    expected, weights = train(plain_engine), values(plain)
    model, engine = make(optimizer, bf16)
    seen = []

    def give_back():
        engine.empty_partition_cache()
        seen.append(status(model))

    losses = train(engine, give_back)
    with capstan.gathered(model[3].weight):
        pass
    kept = model[3].weight.detach()  # whole between uses: anybody may hold a view of it
    before = kept.clone()
    give_back()
    with torch.no_grad():
        engine(torch.ones(2, WIDTH, dtype=kept.dtype))
    again = model[3].weight.numel()
    give_back()
    same = [torch.equal(a, b) for a, b in zip(values(model), weights)]
    return {"losses": losses == expected, "weights": all(same), "kept": torch.equal(kept, before), "again": again,
            "seen": all(each == ({ZeroParamStatus.NOT_AVAILABLE}, 0) for each in seen), "times": len(seen)}


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("optimizer", ["own", "torch"])
@pytest.mark.parametrize("bf16", [False, True])
def test_parameters_are_given_back_at_any_time_and_training_goes_on_as_without(world, optimizer, bf16):
    for found in ranks.run(world, run, optimizer, bf16):
        assert found == {"losses": True, "weights": True, "kept": True, "again": WIDTH, "seen": True, "times": 11}


def held_while_given_back():
    model, engine = make("own", bf16=False)
    with capstan.gathered(model):
        engine.empty_partition_cache()
        inside = sum(p.numel() for p in model.parameters())
    engine.empty_partition_cache()
    return inside, sum(p.numel() for p in model.parameters()), sum(p.ds_numel for p in model.parameters())


def test_what_somebody_holds_stays(world=2):
    for inside, after, whole in ranks.run(world, held_while_given_back):
        assert inside == whole and after == 0


def save_and_load(folder):
    model, engine = make("own", bf16=True)
    train(engine)
    expected = values(model)
    resident = model[0].bias.numel()
    engine.empty_partition_cache()
    engine.save_checkpoint(folder)
    saved = resident, model[0].bias.numel(), model[0].weight.numel()
    train(engine)
    engine.empty_partition_cache()
    engine.load_checkpoint(folder)
    loaded = resident, model[0].bias.numel(), model[0].weight.numel()
    return saved, loaded, all(torch.equal(a, b) for a, b in zip(values(model), expected))


def test_small_parameters_are_whole_again_after_a_save_and_a_load(tmp_path):
    for saved, loaded, same in ranks.run(2, save_and_load, str(tmp_path)):
        assert saved == loaded == (WIDTH, WIDTH, 0) and same

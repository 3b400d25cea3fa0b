"""Models that are a mixture of dtypes on purpose: adapters in fp32 on frozen weights in bf16."""

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import nn

import capstan

deepspeed = pytest.importorskip("deepspeed", reason="needs the package deepspeed")

WIDTH, RANK, STEPS = 16, 4, 3


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH, bias=False)
        self.base.requires_grad_(False)

    def attach(self, beside=None):
        self.down = nn.Parameter(torch.full((RANK, WIDTH), 1.0))
        self.up = nn.Parameter(torch.full((WIDTH, RANK), 1.0))
        if beside is not None:
            beside.convert_to_zero_parameters([self.down, self.up])
        return self

    def forward(self, x):
        added = nn.functional.linear(nn.functional.linear(x.to(self.down.dtype), self.down), self.up)
        return self.base(x) + added.to(x.dtype)


def config_of(stage, **more):
    return {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0,
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}, **more}


def batches():
    generator = torch.Generator().manual_seed(dist.get_rank())
    return [torch.randn(2, WIDTH, generator=generator) for _ in range(STEPS)]


def optimizer_of(model, kind):
    # A step of 1e-4 beside 1: bf16 has no number there.
    make = torch.optim.AdamW if kind == "torch" else capstan.optimizers.AdamW
    return make([p for p in model.parameters() if p.requires_grad], lr=1e-4, weight_decay=0.0)


def train(engine, autocast):
    losses = []
    for x in batches():
        loss = engine(x if autocast else x.bfloat16()).float().square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def dtypes(model):
    return {name: str(p.dtype).removeprefix("torch.") for name, p in model.named_parameters()}


def at_stage(stage, kind, autocast, folder):
    torch.manual_seed(0)
    model = Adapted().bfloat16().attach()
    more = {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}} if autocast else {}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer_of(model, kind), config=config_of(stage, **more))
    losses = train(engine, autocast)
    engine.save_checkpoint(str(folder / f"stage{stage}"))
    with capstan.gathered(model):
        values = {n: p.detach().clone() for n, p in model.named_parameters()}
    with deepspeed.zero.GatheredParameters(list(model.parameters()), modifier_rank=0):
        for p in model.parameters():
            p.data.zero_()
    engine.load_checkpoint(str(folder / f"stage{stage}"))
    with capstan.gathered(model):
        loaded = all(torch.equal(p, values[n]) for n, p in model.named_parameters())
    return losses, values, dtypes(model), loaded


@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("kind", ["own", "torch"])
def test_frozen_bf16_weights_stay_under_fp32_adapters_at_every_stage(tmp_path, kind, autocast):
    of_stage = [ranks.run(2, at_stage, stage, kind, autocast, tmp_path)[0] for stage in range(4)]
    losses, values, found, _ = of_stage[0]
    assert found == {"base.weight": "bfloat16", "down": "float32", "up": "float32"}
    assert 0.0 < (values["down"] - 1).abs().max() < 1e-3
    for other, others, other_found, loaded in of_stage:
        assert other == losses and other_found == found and loaded
        assert all(torch.equal(values[name], others[name]) for name in values)


def upcast():
    """Where something is trained in 16 bits without being told to, all becomes fp32."""
    model = Adapted().attach().bfloat16()
    engine, *_ = deepspeed.initialize(model=nn.Sequential(model, nn.Linear(WIDTH, 1)), config=config_of(
        2, optimizer={"type": "Adam"}))
    return set(dtypes(engine.module).values())


def test_a_model_that_trains_16_bit_weights_without_saying_so_becomes_fp32():
    assert ranks.run(1, upcast) == [{"float32"}]


def sharded_beside(kind, masters):
    bf16 = {"enabled": True}
    if masters == "bf16":
        bf16.update(bf16_master_weights_and_grads=True, bf16_optimizer_states=True)
    config = config_of(3, bf16=bf16)
    torch.manual_seed(0)
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = Adapted()
    model.attach(beside=model.base.weight)
    before = dtypes(model)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer_of(model, kind), config=config)
    train(engine, autocast=False)
    with capstan.gathered(model):
        moved = (model.down - 1).abs().max().item()
    return before, dtypes(model), moved, engine.module.down.ds_tensor.dtype == torch.float32


@pytest.mark.parametrize("kind, masters", [("own", "fp32"), ("torch", "fp32"), ("torch", "bf16")])
def test_parameters_that_were_sharded_in_fp32_beside_bf16_ones_are_trained_in_fp32(kind, masters):
    expected = {"base.weight": "bfloat16", "down": "float32", "up": "float32"}
    for before, after, moved, own in ranks.run(2, sharded_beside, kind, masters):
        assert before == expected and after == expected and own
        assert 0.0 < moved < 1e-3

"""One layout, four stages: the same numbers as DistributedDataParallel, and the same bits at every stage."""

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import nn

import capstan

STEPS = 4


class Tied(nn.Module):
    """Blocks in a list, an embedding shared with the head, a frozen layer, a parameter of the root."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 32)
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(3)])
        self.frozen = nn.Linear(32, 32)
        self.frozen.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(32))
        self.head = nn.Linear(32, 40, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.frozen(x) * self.scale)


def batches(rank):
    generator = torch.Generator().manual_seed(rank)
    return [torch.randint(0, 40, (2, 4, 8), generator=generator) for _ in range(STEPS)]


def loss_of(model, batch):
    return nn.functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def train_ddp():
    torch.manual_seed(0)
    model = Tied()
    ddp = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for batch in batches(dist.get_rank()):
        loss = loss_of(ddp, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, {n: p.detach().clone() for n, p in model.named_parameters()}


def train(stage, kind, threshold=0, more=()):
    torch.manual_seed(dist.get_rank())  # rank 0's weights count
    model = Tied()
    if dist.get_rank() == 0:
        torch.manual_seed(0)
        model = Tied()
    make = torch.optim.AdamW if kind == "torch" else capstan.optimizers.AdamW
    optimizer = make(model.parameters(), lr=1e-2, weight_decay=0.01)
    config = {"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0,
              "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": threshold}, **dict(more)}
    engine = capstan.initialize(model, config, optimizer=optimizer)
    losses = []
    for batch in batches(dist.get_rank()):
        loss = loss_of(engine, batch)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    assert (engine.core.progress.steps, engine.core.progress.skipped) == (STEPS, 0)
    with capstan.gathered(model):
        return losses, {n: p.detach().clone() for n, p in model.named_parameters()}


@pytest.mark.parametrize("kind, world", [("own", 1), ("torch", 2), ("own", 2), ("own", 3), ("torch", 4)])
def test_every_stage_gives_the_same_bits_and_those_of_ddp(kind, world):
    expected = ranks.run(world, train_ddp)
    first = None
    for stage in range(4):
        got = ranks.run(world, train, stage, kind)
        first = first or got
        for (losses, weights), (ddp_losses, ddp_weights), (losses0, weights0) in zip(got, expected, first):
            assert losses == losses0
            assert losses == pytest.approx(ddp_losses, abs=1e-5)
            for name, value in weights.items():
                assert torch.equal(value, weights0[name]), name
                torch.testing.assert_close(value, ddp_weights[name], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("precision", [{"bf16": {"enabled": True}},
                                       {"fp16": {"enabled": True, "initial_scale_power": 8}}], ids=["bf16", "fp16"])
def test_every_stage_gives_the_same_bits_in_16_bits(precision):
    """Those of fp32, within the rounding: no step is skipped."""
    first, whole = None, ranks.run(2, train, 0, "own")
    for stage in range(4):
        got = ranks.run(2, train, stage, "own", 0, precision)
        first = first or got
        for (losses, weights), (losses0, weights0), (losses32, _) in zip(got, first, whole):
            assert losses == losses0 and losses == pytest.approx(losses32, rel=0.02)
            assert all(torch.equal(value, weights0[name]) for name, value in weights.items())

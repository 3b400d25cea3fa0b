"""Activations computed again in backward: the same bits at stages 0 and 3, with every kind of recomputation."""

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

deepspeed = pytest.importorskip("deepspeed", reason="needs the package deepspeed")

STEPS = 3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    """Four blocks between tied embeddings; `kind` says how their activations come back."""

    def __init__(self, kind):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(20, 16), nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.embed.weight
        self.kind = kind

    def two(self, first, x):
        return self.blocks[first + 1](self.blocks[first](x))

    def forward(self, tokens):
        x = self.embed(tokens)
        for i, block in enumerate(self.blocks):
            if self.kind == "deepspeed":
                x = deepspeed.checkpointing.checkpoint(block, x)
            elif self.kind != "pairs":
                x = checkpoint(block, x, use_reentrant=self.kind == "reentrant")
            elif i % 2 == 0:
                x = checkpoint(self.two, i, x, use_reentrant=True)
        return self.head(x)


def losses(stage, kind, how):
    torch.manual_seed(0)
    model = Net(kind)
    model.blocks[1].requires_grad_(how != "frozen")
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2 if how == "accumulated" else 1,
              "optimizer": {"type": "Adam", "params": {"lr": 1e-2}},
              "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}}
    engine = deepspeed.initialize(model=model, config=config)[0]
    found = []
    for step in range(STEPS):
        tokens = torch.arange(6).view(2, 3) + dist.get_rank() + step
        loss = nn.functional.cross_entropy(engine(tokens).flatten(0, 1), tokens.flatten())
        if how == "plain":
            loss.backward()
        else:
            engine.backward(loss)
        engine.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("kind, how", [("reentrant", "engine"), ("reentrant", "plain"), ("reentrant", "frozen"),
                                       ("reentrant", "accumulated"), ("deepspeed", "engine"), ("pairs", "engine"),
                                       ("other", "engine")])
def test_recomputed_blocks_train_the_same_at_stages_0_and_3(kind, how):
    assert ranks.run(2, losses, 3, kind, how) == ranks.run(2, losses, 0, kind, how)


class Breaking(torch.autograd.Function):
    """Ends one backward by an error, after units were made whole for it."""

    broken = True

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        if Breaking.broken:
            raise RuntimeError("broken on purpose")
        return grad


def after_a_broken_backward(stage, kinds):
    """A backward that breaks, then others: whether each is a plain one or engine.backward()."""
    torch.manual_seed(0)
    model = Net("plain")
    model.blocks[2].requires_grad_(False)
    config = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "Adam", "params": {"lr": 1e-2}},
              "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}}
    engine = deepspeed.initialize(model=model, config=config)[0]
    model.blocks[1].register_forward_hook(lambda module, args, output: Breaking.apply(output))
    found = []
    for turn, plain in enumerate(kinds):
        Breaking.broken = turn == 0
        loss = nn.functional.cross_entropy(engine(torch.arange(6).view(2, 3)).flatten(0, 1), torch.arange(6))
        if turn == 0:
            with pytest.raises(RuntimeError, match="on purpose"):
                loss.backward() if plain else engine.backward(loss)
            engine.zero_grad()
        else:
            loss.backward() if plain else engine.backward(loss)
            engine.step()
            found.append(loss.item())
        assert stage < 3 or all(p.shape == (0,) for p in model.parameters())  # nothing stays whole
    return found


@pytest.mark.parametrize("broken, plain", [(False, False), (True, False), (True, True)])
def test_training_goes_on_after_a_backward_that_broke(broken, plain):
    results = [ranks.run(1, after_a_broken_backward, stage, (broken, plain, plain))[0] for stage in (0, 2, 3)]
    assert results[0] == results[1] == results[2]
    assert results[0][1] < results[0][0]

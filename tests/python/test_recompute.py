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

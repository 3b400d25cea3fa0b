"""Step times through the Python package on two CPU ranks, against PyTorch's DDP in the same run.

    capstan launch -n 2 benchmarks/python/step_bench.py            (or torchrun --nproc_per_node 2 ...)

Rounds are interleaved, so that what else runs on the machine meets all of them alike; the figure is the median of the
rounds' ratios, the bound is 1 for DDP. The second part is a small model: stage 3 against stage 0.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn

import capstan

VOCABULARY, POSITIONS, HIDDEN, LAYERS, HEADS = 8192, 128, 384, 6, 6


class Block(nn.Module):
    """A block of GPT-2."""

    def __init__(self):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, 3 * HIDDEN)
        self.out, self.second_norm = nn.Linear(HIDDEN, HIDDEN), nn.LayerNorm(HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x):
        batch, length, _ = x.shape
        parts = self.attention(self.norm(x)).view(batch, length, 3, HEADS, HIDDEN // HEADS).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, HIDDEN))
        return x + self.down(nn.functional.gelu(self.up(self.second_norm(x)), approximate="tanh"))


class Gpt(nn.Module):

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, HIDDEN), nn.Embedding(POSITIONS, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(HIDDEN)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return nn.functional.linear(self.norm(x), self.tokens.weight)


class Residual(nn.Module):

    def __init__(self, before, after, stride):
        super().__init__()
        self.path = nn.Sequential(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
                                  nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after))
        self.short = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x):
        return nn.functional.relu(self.path(x) + self.short(x))


def images():
    """9.9 M parameters: 0.16 GB with gradients and the states of Adam."""
    widths = (32, 64, 128, 256, 512, 512)
    blocks = [Residual(a, b, 1 if i == 0 else 2 if i < 4 else 1) for i, (a, b) in enumerate(zip(widths, widths[1:]))]
    return nn.Sequential(nn.Conv2d(3, 32, 3, 1, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class Trained:
    """A model under DDP or at a stage; step() is one train step."""

    def __init__(self, kind, make, batch):
        torch.manual_seed(0)
        self.kind, self.model, self.batch = kind, make(), batch
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4) if kind == "ddp" else \
            capstan.optimizers.AdamW(self.model.parameters(), lr=1e-4)
        if kind == "ddp":
            self.engine = nn.parallel.DistributedDataParallel(self.model)
        else:
            config = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0, "zero_optimization": {"stage": kind}}
            self.engine = capstan.initialize(self.model, config, optimizer=self.optimizer)

    def step(self):
        inputs, labels = self.batch
        loss = nn.functional.cross_entropy(self.engine(inputs).flatten(0, -2), labels.flatten())
        if self.kind == "ddp":
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        else:
            self.engine.backward(loss)
            self.engine.step()


def measure(kinds, make, batch, rounds, steps):
    """kind -> seconds per step, one figure for each round."""
    trained = [Trained(kind, make, batch) for kind in kinds]
    times = {kind: [] for kind in kinds}
    for number in range(rounds + 1):
        for each in trained:
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(steps):
                each.step()
            dist.barrier()
            if number > 0:  # the first one warms up and records the order of use
                times[each.kind].append((time.perf_counter() - begin) / steps)
    return times


def report(title, times, base):
    if dist.get_rank() != 0:
        return
    print(title)
    for kind, seconds in times.items():
        ratio = statistics.median(mine / other for mine, other in zip(seconds, times[base]))
        name = "DDP" if kind == "ddp" else f"stage {kind}"
        print(f"  {name:8} {1000 * statistics.median(seconds):8.1f} ms   {ratio:.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    capstan.init_distributed("gloo")
    torch.manual_seed(dist.get_rank())
    tokens = torch.randint(0, VOCABULARY, (4, POSITIONS))
    times = measure(["ddp", 0, 1, 2, 3], Gpt, (tokens, tokens), args.rounds, args.steps)
    report("GPT of 6 x 384, 4 x 128 tokens, fp32: step, x DDP", times, "ddp")
    pictures = torch.rand(16, 3, 32, 32), torch.randint(0, 10, (16,))
    times = measure([0, 3], images, pictures, args.rounds, args.steps)
    report(f"{sum(p.numel() for p in images().parameters()) / 1e6:.1f} M parameters on images, batch 16: step, x stage 0",
           times, 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

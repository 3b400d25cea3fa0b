"""A small convolutional network on images of CIFAR's shape, through the plain engine.

    capstan launch -n 2 train.py --stage 3        (or torchrun --nproc_per_node 2 train.py --stage 3)
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn

import capstan


class Net(nn.Module):

    def __init__(self, width):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, width, 3, stride=2, padding=1), nn.ReLU(),
                                      nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(2 * width * 64, 8 * width), nn.ReLU(), nn.Linear(8 * width, 10))

    def forward(self, images):
        return self.head(self.features(images))


def batch(size, step, rank):
    """Images whose class is their brightest channel and half: ten classes that can be learnt."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    labels = torch.randint(0, 10, (size,), generator=generator)
    images = torch.rand(size, 3, 32, 32, generator=generator) * 0.5
    rows = labels * 3
    for image, row in zip(images, rows):
        image[:, row:row + 3] += 1.0
    return images, labels


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stage", type=int, default=3, help="0 to 3, or -1 for PyTorch's DDP")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--local_rank", type=int, default=0)
    args = parser.parse_args()
    capstan.init_distributed()
    torch.manual_seed(0)
    model = Net(args.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    if args.stage < 0:
        engine = nn.parallel.DistributedDataParallel(model)
    else:
        config = {"train_micro_batch_size_per_gpu": args.batch, "zero_optimization": {"stage": args.stage}}
        engine = capstan.initialize(model, config, optimizer=optimizer)
    begin = time.time()
    for step in range(args.steps):
        images, labels = batch(args.batch, step, dist.get_rank())
        loss = nn.functional.cross_entropy(engine(images), labels)
        if args.stage < 0:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        else:
            engine.backward(loss)
            engine.step()
        if dist.get_rank() == 0 and step in (0, args.steps - 1):
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)
    rate = args.steps * args.batch * dist.get_world_size() / (time.time() - begin)
    if dist.get_rank() == 0:
        print(f"{rate:.0f} images/s, " + ("DDP" if args.stage < 0 else f"stage {args.stage}"), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

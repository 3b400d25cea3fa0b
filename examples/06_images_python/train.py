"""A small convolutional network on images of CIFAR's shape through the plain engine, DDP beside stages 2 and 3.

    capstan launch -n 2 train.py        (or torchrun --nproc_per_node 2 train.py)
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
    """Noise with three bright rows, whose place is the class."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    labels = torch.randint(0, 10, (size,), generator=generator)
    images = torch.rand(size, 3, 32, 32, generator=generator)
    for image, row in zip(images, 3 * labels):
        image[:, row:row + 3] += 1.0
    return images, labels


def train(args, kind, device):
    """(first loss, last loss, images per second) with `kind`: "ddp" or a stage."""
    torch.manual_seed(0)
    model = Net(args.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    if kind == "ddp":
        engine = nn.parallel.DistributedDataParallel(model)
    else:
        config = {"train_micro_batch_size_per_gpu": args.batch, "gradient_clipping": 0,  # as DDP here
                  "zero_optimization": {"stage": int(kind)}}
        engine = capstan.initialize(model, config, optimizer=optimizer)
    losses, begin = [], time.time()
    for step in range(args.steps):
        images, labels = batch(args.batch, step, dist.get_rank())
        loss = nn.functional.cross_entropy(engine(images.to(device)), labels.to(device))
        if kind == "ddp":
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        else:
            engine.backward(loss)
            engine.step()
        losses.append(loss.item())
    return losses[0], losses[-1], args.steps * args.batch * dist.get_world_size() / (time.time() - begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="+", default=["ddp", "2", "3"], help="ddp, or a ZeRO stage")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    args = parser.parse_args()
    capstan.init_distributed()
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    for kind in args.kinds:
        first, last, rate = train(args, kind, device)
        if dist.get_rank() == 0:
            name = "DDP" if kind == "ddp" else f"stage {kind}"
            print(f"{name:8} first loss {first:.4f}, last loss {last:.4f}, {rate:.0f} images/s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

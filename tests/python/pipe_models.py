"""One small model as layers of a pipeline, trained in stages and whole, on the same micro-batches."""

import torch
import torch.distributed as dist
from torch import nn

import capstan
import deepspeed
from deepspeed.pipe import LayerSpec, PipelineModule
from deepspeed.runtime.pipe.topology import PipeDataParallelTopology

WIDTH, STEPS, GAS = 6, 3, 3


class Start(nn.Module):
    """Tokens to a nested tuple of floats, integers, booleans, an int and a None."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, WIDTH)

    def forward(self, tokens):
        return self.embed(tokens), (tokens > 4, tokens, 2), None


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.relu = nn.ReLU(inplace=True)  # at the beginning of a stage, it changes what was received

    def forward(self, given):
        x, (mask, tokens, factor), none = given
        assert none is None and factor == 2 and mask.dtype == torch.bool and tokens.dtype == torch.int64
        x = self.inner(self.relu(x)) * factor
        return nn.functional.dropout(x, 0.25, self.training).masked_fill(mask[..., None], 0.5), (mask, tokens, factor), none


class End(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, given):
        return self.head(given[0])


def loss_of(output, labels):
    return nn.functional.cross_entropy(output.float().flatten(0, 1), labels.flatten())


def layers():
    return [LayerSpec(Start), *[LayerSpec(Block) for _ in range(4)], LayerSpec(End)]


def piped(stages, **how):
    topology = PipeDataParallelTopology(num_pp=stages, num_dp=dist.get_world_size() // stages)
    how = {"partition_method": "uniform", "seed_layers": True, "loss_fn": loss_of, **how}
    return PipelineModule(layers(), topology=topology, **how)


class Whole(nn.Module):
    """All layers, for an engine without a pipeline."""

    def __init__(self):
        super().__init__()
        self.pipe = PipelineModule(layers(), num_stages=1, seed_layers=True)

    def forward(self, tokens):
        return self.pipe(tokens)


def config(stage=0, dtype="fp32", gas=GAS, **more):
    kinds = {"fp32": {}, "bf16": {"bf16": {"enabled": True}}, "fp16": {"fp16": {"enabled": True, "initial_scale_power": 8}}}
    return {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": gas, "gradient_clipping": 0,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}, **kinds[dtype], **more}


def batches(data_rank, steps=STEPS, gas=GAS):
    """(tokens, labels) of each micro-batch in turn, their length another one each time."""
    for number in range(steps * gas):
        generator = torch.Generator().manual_seed(1000 * data_rank + number)
        tokens = torch.randint(0, 10, (2, 3 + number % 3), generator=generator)
        yield tokens, tokens.roll(1, dims=1)


def engine_of(model, settings):
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)[0]


def weights(engine):
    """By their names in the whole model."""
    with capstan.gathered(engine.module):
        return {name.removeprefix("pipe."): param.detach().clone() for name, param in engine.module.named_parameters()}


def train_whole(settings, steps=STEPS):
    engine = engine_of(Whole(), settings)
    data, losses = batches(dist.get_rank(), steps), []
    for _ in range(steps):
        found = []
        for _ in range(GAS):
            tokens, labels = next(data)
            found.append(loss_of(engine(tokens), labels))
            engine.backward(found[-1])
            engine.step()
        losses.append((sum(each.detach() for each in found) / GAS).item())
    return losses, weights(engine)


def train_piped(stages, settings, steps=STEPS, **how):
    engine = engine_of(piped(stages, **how), settings)
    data = batches(engine.grid.get_data_parallel_rank(), steps)
    losses = []
    for _ in range(steps):
        mean = engine.train_batch(data_iter=data)
        losses.append((engine.dp_group_loss.item(), mean.item()))
    assert (engine.global_steps, engine.skipped_steps, engine.global_samples) == (
        steps, 0, steps * GAS * 2 * engine.grid.data_parallel_size)
    return losses, weights(engine)

"""Models that are split before initialize(): by tp_model_init(), or by layers of their own, of which an mpu knows the ranks."""

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import nn

transformers = pytest.importorskip("transformers", reason="needs transformers")

import capstan  # noqa: E402
import deepspeed  # noqa: E402
from tensor_models import build, config, learn  # noqa: E402

LOADED = build("llama")  # once here and not in every rank, which is forked from this process
ROUNDING = 2e-5


def early(size, given):
    model = deepspeed.tp_model_init(build("llama"), size, torch.float32)
    engine = deepspeed.initialize(model=model, config=config(given, 1))[0]
    assert engine.autotp_size() == size and engine.dp_world_size == dist.get_world_size() // size
    return *learn(engine, size, lambda engine: engine.get_global_grad_norm()), engine.whole_weights()


def late(size):
    engine = deepspeed.initialize(model=build("llama"), config=config(size, 1))[0]
    return *learn(engine, size, lambda engine: engine.get_global_grad_norm()), engine.whole_weights()


def test_a_model_that_was_split_before_trains_the_same():
    wanted = ranks.run(4, late, 2)
    for given in (0, 2):
        found = ranks.run(4, early, 2, given)
        assert [each[:2] for each in found] == [each[:2] for each in wanted]
        assert all(torch.equal(found[0][2][name], wanted[0][2][name]) for name in wanted[0][2])


def other_sizes():
    errors = []
    for act in (lambda: early(2, 1), lambda: deepspeed.tp_model_init(deepspeed.tp_model_init(build("llama"), 2, torch.float32), 1, None),
                lambda: deepspeed.tp_model_init(build("llama"), 2, torch.float32, config={"tp": 2})):
        with pytest.raises(ValueError) as caught:
            act()
        errors.append(str(caught.value))
    return errors


def test_two_sizes_for_one_model_are_refused():
    config_s, twice, extra = ranks.run(2, other_sizes)[0]
    assert "the configuration says 1, but 2 ranks split the model" in config_s
    assert "split between 2 ranks already, not 1" in twice and "takes no config" in extra


class Mpu:
    """Neighbours split a model, or (`far`) ranks that are as far apart as can be."""

    def __init__(self, size, far=False, stages=1):
        world, self.size, self.stages = dist.get_world_size(), size, stages
        near = [list(range(first, first + size)) for first in range(0, world, size)]
        apart = [list(range(first, world, world // size)) for first in range(world // size)]
        split = apart if far else near
        data = [list(each) for each in zip(*split)]
        self.groups = {name: next(group for group, members in [(dist.new_group(members), members) for members in lists]
                                  if dist.get_rank() in members) for name, lists in (("split", split), ("data", data))}

    def get_tensor_model_parallel_world_size(self):
        return self.size

    def get_tensor_model_parallel_group(self):
        return self.groups["split"]

    def get_pipeline_model_parallel_world_size(self):
        return self.stages

    def get_model_parallel_world_size(self):
        return self.size * self.stages

    def get_model_parallel_group(self):
        return self.groups["split"]

    def get_model_parallel_rank(self):
        return self.groups["split"].rank()

    def get_data_parallel_world_size(self):
        return self.groups["data"].size()

    def get_data_parallel_group(self):
        return self.groups["data"]

    def get_data_parallel_rank(self):
        return self.groups["data"].rank()


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Mlp(nn.Module):
    """Layers in Megatron's way: parts of weights, marked as such; or whole ones without a group."""

    def __init__(self, group=None, dim_of_up=0):
        super().__init__()
        torch.manual_seed(0)
        up, down = torch.randn(12, 6) * 0.3, torch.randn(6, 12) * 0.3
        self.group, self.norm = group, nn.LayerNorm(6)
        size, rank = (1, 0) if group is None else (group.size(), group.rank())
        self.up = nn.Parameter(up.chunk(size, 0)[rank].clone())
        self.down = nn.Parameter(down.chunk(size, 1)[rank].clone())
        for param, dim in ((self.up, dim_of_up), (self.down, 1)) if size > 1 else ():
            param.tensor_model_parallel, param.partition_dim, param.partition_stride = True, dim, 1

    def forward(self, x):
        x = self.norm(x)
        if self.group is None:
            return (torch.tanh(x @ self.up.t()) @ self.down.t()).square().mean()
        inside = torch.tanh(_Enter.apply(x, self.group) @ self.up.t())
        return _Leave.apply(inside @ self.down.t(), self.group).square().mean()


def plain(stage):
    return {"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0.01, "zero_optimization": {"stage": stage},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "eps": 1e-2}}}


def megatron(folder, size, stage):
    mpu = Mpu(size) if size > 1 else None
    engine = deepspeed.initialize(model=Mlp(mpu and mpu.groups["split"]), config=plain(stage), mpu=mpu)[0]
    assert engine.dp_world_size == dist.get_world_size() // size and engine.train_batch_size() == 4 * engine.dp_world_size
    norms = []
    for step in range(3):
        torch.manual_seed(10 * step + dist.get_rank() // size)
        engine.backward(engine(torch.randn(4, 6)))
        engine.step()
        norms.append(float(engine.get_global_grad_norm()))
    if size > 1:
        engine.save_checkpoint(folder)
    return norms, dict(engine.whole_weights() or {})


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_layers_of_megatrons_train_as_whole_ones(tmp_path, stage):
    wanted = ranks.run(2, megatron, "", 1, stage)
    found = ranks.run(4, megatron, str(tmp_path), 2, stage)
    torch.testing.assert_close(found[0], wanted[0], rtol=ROUNDING, atol=ROUNDING)
    assert all(norm > 0.01 for norm in wanted[0][0])  # clipped
    stored = capstan.StoredWeights(tmp_path)
    torch.testing.assert_close({name: stored[name] for name in stored}, wanted[0][1], rtol=ROUNDING, atol=ROUNDING)


def refused():
    errors = []
    for mpu, dim in ((Mpu(2, far=True), 0), (Mpu(2, stages=2), 0), (Mpu(2), -1)):
        with pytest.raises(ValueError) as caught:
            deepspeed.initialize(model=Mlp(mpu.groups["split"], dim), config=plain(1), mpu=mpu)
        errors.append(str(caught.value))
    return errors


def test_ranks_in_another_order_pipelines_and_parts_of_nobody_knows_what_are_refused():
    far, stages, dim = ranks.run(4, refused)[1]
    assert "neighbours split a model" in far and "[1, 3] (tensor)" in far and "let ranks [0, 1] split a model" in far
    assert "a pipeline of 2 stages" in stages and "PipelineModule" in stages
    assert "parameter 'up' is a part of a larger one, of dimension -1" in dim

"""What a script keeps of parameters and gradients that were shown to it."""

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import nn

import capstan

deepspeed = pytest.importorskip("deepspeed", reason="needs the package deepspeed")


def make(stage, optimizer=torch.optim.SGD):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5))
    config = {"train_micro_batch_size_per_gpu": 2,
              "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}}
    return model, capstan.initialize(model, config, optimizer=optimizer(model.parameters(), lr=0.1))


def train(engine, steps=2):
    losses = []
    for step in range(steps):
        loss = engine(torch.full((2, 5), 1.0 + step + dist.get_rank())).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def keep_views():
    model, engine = make(3)
    plain, plain_engine = make(0)
    before = [p.detach().clone() for p in plain.parameters()]
    with capstan.gathered(model):
        kept = [p.detach() for p in model.parameters()]
    first = [torch.equal(view, value) for view, value in zip(kept, before)]
    losses = train(engine)
    with capstan.gathered(model):
        after = [p.data for p in model.parameters()]
    return {"kept": first + [torch.equal(view, value) for view, value in zip(kept, before)],
            "losses": losses == train(plain_engine),
            "after": [torch.equal(view, p.detach()) for view, p in zip(after, plain.parameters())],
            "released": all(p.numel() == 0 for p in model.parameters())}


@pytest.mark.parametrize("world", [1, 2])
def test_views_of_gathered_parameters_stay_as_they_were(world):
    for found in ranks.run(world, keep_views):
        assert all(found["kept"]) and all(found["after"]) and found["losses"] and found["released"], found


def backward_after_gather():
    """Somebody reads parameters between forward and backward, and keeps what he read."""
    losses = []
    for stage in (0, 3):
        model, engine = make(stage)
        for step in range(2):
            loss = engine(torch.full((2, 5), 1.0 + step + dist.get_rank())).square().mean()
            with capstan.gathered(model):
                kept = [p.detach() for p in model.parameters()]
            engine.backward(loss)
            losses.append((stage, loss.item(), sum(view.sum().item() for view in kept)))
            engine.step()
    return [entry[1:] for entry in losses if entry[0] == 0] == [entry[1:] for entry in losses if entry[0] == 3]


@pytest.mark.parametrize("world", [1, 2])
def test_views_kept_between_forward_and_backward_change_no_gradient(world):
    assert all(ranks.run(world, backward_after_gather))


def write_own_elements():
    model, engine = make(3)
    for value, param in enumerate(model.parameters(), 1):
        param.ds_tensor.data = torch.full_like(param.ds_tensor, value)
        param.ds_tensor.add_(10)
    with capstan.gathered(model):
        values = [p.unique().tolist() for p in model.parameters()]
    return values, type(model[0].weight.ds_tensor + 1) is torch.Tensor


@pytest.mark.parametrize("world", [1, 2])
def test_what_every_rank_writes_into_its_own_elements_is_the_parameter(world):
    for values, plain in ranks.run(world, write_own_elements):
        assert values == [[11.0], [12.0], [13.0], [14.0]] and plain


def lone_parameters(stage):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 3, bias=False), nn.Linear(3, 5, bias=False))
    config = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.1}},
              "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}}
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    losses = []
    for step in range(3):
        loss = engine(torch.full((2, 5), 1.0 + step + dist.get_rank())).square().mean()
        engine.backward(loss)
        if stage == 3:
            partitions = engine.optimizer.get_fp32_grad_partitions()[0]
            for i, param in enumerate(model.parameters()):
                whole = nn.functional.pad(deepspeed.utils.safe_get_full_grad(param).flatten(), (0, 1))
                assert param.ds_tensor.numel() == 8
                assert torch.equal(partitions[i], whole.chunk(2)[dist.get_rank()])
        engine.step()
        losses.append(loss.item())
    return losses


def test_a_parameter_alone_in_its_unit_is_cut_into_equal_parts():
    assert ranks.run(2, lone_parameters, 3) == ranks.run(2, lone_parameters, 0)


class Watching(torch.optim.SGD):
    """Notes for each gradient whether it is a part of a larger buffer."""

    parts = ()

    def step(self, closure=None):
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        self.parts = [grad.untyped_storage().nbytes() > grad.nbytes for grad in grads]
        return super().step(closure)


def gradients_are_parts(stage):
    _, engine = make(stage, Watching)
    train(engine, 1)
    return engine.optimizer.parts


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_the_gradients_of_a_clients_optimizer_are_the_sums_and_no_copies(stage):
    for parts in ranks.run(2, gradients_are_parts, stage):
        assert parts and all(parts)


def state_dict_of_one_rank(stage):
    torch.manual_seed(0)
    model = nn.Linear(5, 5)
    config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": stage},
              "optimizer": {"type": "AdamW", "params": {"lr": 0.1}}}
    engine, optimizer, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    train(engine, 1)
    if dist.get_rank() == 0:  # as scripts do before torch.save()
        state = optimizer.state_dict()["optimizer_state_dict"]
        assert state["param_groups"][0]["lr"] == 0.1 and "exp_avg" in state["state"][0]
    return train(engine, 1)


@pytest.mark.parametrize("stage", [1, 3])
def test_one_rank_alone_may_ask_for_the_optimizers_state_dict(stage):
    ranks.run(2, state_dict_of_one_rank, stage)


def adapters():
    torch.manual_seed(0)
    with deepspeed.zero.Init():
        model = nn.Linear(6, 6)
    model.adapter = nn.Parameter(torch.arange(6.0))
    model.weight.convert_to_zero_parameters([model.adapter])
    shape = model.adapter.shape
    config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}}
    engine = capstan.initialize(model, config, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    with capstan.gathered(model):
        values = model.adapter.tolist()
    loss = (engine(torch.ones(2, 6)) * 1.0).sum()
    engine.backward(loss)
    engine.step()
    with pytest.raises(capstan.ConfigError, match="already has an engine"):
        model.weight.convert_to_zero_parameters([nn.Parameter(torch.ones(2))])
    return list(shape), values


def test_parameters_made_after_init_are_sharded_beside_the_others():
    assert ranks.run(2, adapters) == [([0], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0])] * 2


def test_the_linear_function_of_stage_3_goes_through_transforms_and_keeps_its_precision():
    from deepspeed.runtime.zero.linear import zero3_linear_wrap

    weight, bias, x = torch.randn(4, 8), torch.randn(4), torch.randn(3, 8)
    loss = lambda function: lambda w, b, v: function(v, w, b).square().sum()  # noqa: E731
    ours = torch.func.grad(loss(zero3_linear_wrap), argnums=(0, 1, 2))(weight, bias, x)
    plain = torch.func.grad(loss(nn.functional.linear), argnums=(0, 1, 2))(weight, bias, x)
    for mine, theirs in zip(ours, plain):
        torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(torch.func.vmap(lambda v: zero3_linear_wrap(v, weight, bias))(x),
                               nn.functional.linear(x, weight, bias))
    weight.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = zero3_linear_wrap(x, weight, bias)
    out.float().sum().backward()
    assert out.dtype == torch.bfloat16 and weight.grad.dtype == torch.float32

"""Tiles of a sequence: loss and gradients are those of the whole, and each parameter under ZeRO gets its gradient once."""

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import nn

deepspeed = pytest.importorskip("deepspeed", reason="needs the package deepspeed")

from deepspeed.runtime.sequence_parallel.ulysses_sp import (  # noqa: E402
    SequenceTiledCompute, TiledFusedLogitsLoss, TiledMLP, sequence_tiled_compute)

WIDTH, WORDS = 8, 10


class Mlp(nn.Module):
    """`kind` says how it computes, `calls` what lengths it saw."""

    def __init__(self, kind):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.kind, self.calls = kind, []

    def plain(self, x):
        self.calls.append(x.shape[-2])
        return self.down(torch.tanh(self.up(x)))

    def forward(self, x):
        if self.kind == "tiled":
            return TiledMLP.apply(Mlp.plain, self, x, 4, [self.up.weight])  # the other three find their gradients as well
        if self.kind == "generic":
            return sequence_tiled_compute(Mlp.plain, x.shape[1], 4, {"x": x}, {"self": self}, "x", None, 1, None)
        return self.plain(x)


class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.first, self.second = Mlp(kind), Mlp(kind)
        self.head, self.kind, self.calls = nn.Linear(WIDTH, WORDS), kind, []

    def loss(self, x, y):
        self.calls.append(x.numel() // WIDTH)
        return nn.functional.cross_entropy(self.head(x).view(-1, WORDS), y.reshape(-1))

    def forward(self, x, y):
        x = self.second(self.first(x))
        if self.kind == "whole":
            return self.loss(x, y)
        return TiledFusedLogitsLoss.apply(Model.loss, self, x, y, None, 3, [self.head.weight], "mean")


def batch(dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    return torch.randn(2, 13, WIDTH, dtype=dtype), torch.randint(WORDS, (2, 13))


def trained(kind, stage, precision):
    """(losses, weights) of two steps, each of two micro-batches."""
    torch.manual_seed(0)
    model = Model(kind)
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "gradient_clipping": 0.1,
              "optimizer": {"type": "SGD", "params": {"lr": 0.5}},
              "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}}
    if precision == "fp16":  # gradients of this size are gone unless they are scaled on their way
        config["fp16"] = {"enabled": True, "loss_scale": 1024}
    engine = deepspeed.initialize(model=model, config=config)[0]
    losses = []
    for step in range(4):
        x, y = batch(torch.float32, 10 * step + dist.get_rank())
        loss = engine(x.half() if precision == "fp16" else x, y)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        return losses, [p.detach().float().clone() for p in model.parameters()], model.first.calls, model.calls


@pytest.mark.parametrize("precision, rounding", [("fp32", 1e-5), ("fp16", 2e-2)])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_training_in_tiles_is_training_on_the_whole(stage, precision, rounding):
    whole = ranks.run(2, trained, "whole", stage, precision)[0]
    for kind in ("tiled", "generic"):
        tiled = ranks.run(2, trained, kind, stage, precision)[0]
        torch.testing.assert_close(tiled[0], whole[0], rtol=rounding, atol=rounding)
        torch.testing.assert_close(tiled[1], whole[1], rtol=rounding, atol=rounding)
        assert tiled[2] == [4, 3, 3, 3, *reversed([4, 3, 3, 3])] * 4  # once again in backward, from the last to the first
        assert tiled[3] == ([9, 9, 8] if precision == "fp32" else [9, 9, 8, 8, 9, 9]) * 4
    assert whole[2] == [13] * 4 and whole[3] == [26] * 4


def gradients(kind, scale):
    torch.manual_seed(0)
    model = Model(kind).double()
    x, y = batch()
    x.requires_grad_()
    (model(x, y) * scale).backward()
    return [x.grad, *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("kind", ["tiled", "generic"])
def test_gradients_of_inputs_and_parameters_follow_a_factor_behind_the_loss(kind):
    torch.testing.assert_close(gradients(kind, 3.0), gradients("whole", 3.0), rtol=1e-12, atol=1e-12)


def test_a_tiled_loss_can_be_differentiated_again():
    torch.manual_seed(0)
    model = Model("tiled").double()
    x, y = batch()
    loss = model(x, y)
    once = torch.autograd.grad(loss, list(model.head.parameters()), retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(loss, list(model.head.parameters())), once)


@pytest.mark.parametrize("reduction", ["mean", "sum", None])
def test_reductions_of_one_number_per_tile(reduction):
    x, y = batch()
    x.requires_grad_()
    weight = torch.randn(WIDTH, WORDS, dtype=torch.float64, requires_grad=True)

    def loss(part, target, how="mean"):
        return nn.functional.cross_entropy((part @ weight).view(-1, WORDS), target.reshape(-1), reduction=how)

    found = sequence_tiled_compute(loss, 13, 4, {"part": x, "target": y}, {"how": reduction or "sum"}, "part", [weight], 0, reduction)
    wanted = loss(x, y, reduction or "sum")
    if reduction is None:
        assert found.shape == (4,)
        found = found.sum()
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(torch.autograd.grad(found, [x, weight]), torch.autograd.grad(wanted, [x, weight]))


def test_outputs_are_reduced_over_all_their_elements():
    x, _ = batch()
    for reduction in ("mean", "sum"):
        found = sequence_tiled_compute(torch.sin, 13, 4, {"input": x}, {}, "input", None, 1, reduction)
        torch.testing.assert_close(found, getattr(x.sin(), reduction)())


def test_a_mask_is_cut_like_the_rest_and_a_sum_is_a_sum():
    x, y = batch()
    x.requires_grad_()
    mask = torch.rand(2, 13) < 0.5
    head = nn.Linear(WIDTH, WORDS).double()

    def loss(module, part, target, keep):
        each = nn.functional.cross_entropy(module(part), target, reduction="none")
        return (each * keep).sum()

    found = TiledFusedLogitsLoss.apply(loss, head, x, y, mask, 5, None, "sum")
    wanted = loss(head, x.flatten(0, 1), y.flatten(), mask.flatten())
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(torch.autograd.grad(found, [x, head.bias]), torch.autograd.grad(wanted, [x, head.bias]))


def test_dropout_is_the_same_when_it_is_computed_again():
    x = torch.ones(1, 64, 4, requires_grad=True)
    y = TiledMLP.apply(lambda _, part: nn.functional.dropout(part, 0.5), None, x, 4)
    torch.rand(5)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach()) and 0 < (y == 0).sum() < y.numel()


def test_without_gradients_nothing_is_kept():
    model = Model("tiled").double()
    x, y = batch()
    with torch.no_grad():
        loss = model(x, y)
    assert not loss.requires_grad and model.first.calls == [4, 3, 3, 3] and model.calls == [9, 9, 8]
    torch.testing.assert_close(loss, model.loss(model.second.plain(model.first.plain(x)), y).detach())


def test_what_cannot_be_cut_is_said():
    x, y = batch()
    with pytest.raises(ValueError, match="13 positions cannot be cut into 14 tiles"):
        TiledMLP.apply(lambda _, part: part, None, x, 14)
    with pytest.raises(ValueError, match="'max'"):
        SequenceTiledCompute.apply(torch.sin, 13, 2, ["input"], [], "input", None, 1, "max", x)
    with pytest.raises(ValueError, match="'z'.*not among the arguments: input"):
        sequence_tiled_compute(torch.sin, 13, 2, {"input": x}, {}, "z")
    with pytest.raises(ValueError, match="input has 13 positions.*seqlen is 12"):
        sequence_tiled_compute(torch.sin, 12, 2, {"input": x}, {}, "input")
    with pytest.raises(ValueError, match="same batch and sequence"):
        TiledFusedLogitsLoss.apply(None, None, x, y[:, 1:], None, 2)
    with pytest.raises(ValueError, match=r"mask must be \[2, 13\]"):
        TiledFusedLogitsLoss.apply(None, None, x, y, y[0], 2)
    with pytest.raises(ValueError, match="'mean' or 'sum'"):
        TiledFusedLogitsLoss.apply(None, None, x, y, None, 2, None, None)

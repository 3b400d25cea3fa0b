"""Ranks that do different things: an error that Python can catch, on every rank, that says what they do."""

import pytest
import ranks
import torch

import capstan

CONFIG = {"train_micro_batch_size_per_gpu": 1,
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
          "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 0}}


class Branches(torch.nn.Module):
    """Calls b, c, or both, as it is told; both are as large unless `wide` says otherwise."""

    def __init__(self, wide):
        super().__init__()
        self.a = torch.nn.Linear(8, 8)
        self.b = torch.nn.Linear(8, 8)
        self.c = torch.nn.Sequential(torch.nn.Linear(8, wide), torch.nn.Linear(wide, 8))

    def forward(self, x, path):
        x = self.a(x)
        for name in path:
            x = getattr(self, name)(x)
        return x.square().mean()


def error_of(steps):
    try:
        steps()
    except capstan.CommError as error:
        return str(error)
    return "no error"


def diverge(wide, same_steps):
    import torch.distributed as dist
    torch.manual_seed(0)
    engine = capstan.initialize(Branches(wide), CONFIG)
    x = torch.ones(1, 8)

    def step(path):
        engine.backward(engine(x, path))
        engine.step()

    for _ in range(same_steps):
        step("bc")
    return error_of(lambda: [step("bc" if dist.get_rank() == 0 else "c") for _ in range(3)])


@pytest.mark.parametrize("wide, same_steps", [(8, 0), (8, 2), (64, 0), (64, 2)])
def test_ranks_that_gather_different_units_are_told_which(wide, same_steps):
    for error in ranks.run(2, diverge, wide, same_steps):
        assert "ranks 0 and 1 gather different units (b, c" in error, error
        assert "last operations of rank" in error


class Pausing(torch.nn.Module):
    """Computes for longer than the group's timeout while the next unit's gather, which was begun ahead, has long ended."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.pause_s = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), 0

    def forward(self, x):
        import time
        x = self.first(x)
        time.sleep(self.pause_s)
        return self.second(x).square().mean()


def pause(timeout_s):
    zero = {**CONFIG["zero_optimization"], "stage3_prefetch_bucket_size": 10**6}
    engine = capstan.initialize(Pausing(), {**CONFIG, "zero_optimization": zero, "capstan": {"timeout_s": timeout_s}})
    for pause_s in (0, 0, timeout_s + 2):
        engine.module.pause_s = pause_s
        engine.backward(engine(torch.ones(1, 8)))
        engine.step()
    return engine.core_group.failed


def test_a_gather_that_has_ended_is_not_late_because_the_model_computes_long():
    assert ranks.run(2, pause, 4) == [False, False]


def unequal_steps():
    import torch.distributed as dist
    torch.manual_seed(0)
    engine = capstan.initialize(Branches(64), CONFIG)

    def train():
        for _ in range(2 + dist.get_rank()):
            engine.backward(engine(torch.ones(1, 8), "bc"))
            engine.step()
        engine.core.finish_gradients()
        with capstan.gathered(list(engine.module.c.parameters())):
            pass

    return error_of(train)


def test_ranks_that_take_unequal_numbers_of_steps_are_told_where_each_is():
    for error in ranks.run(2, unequal_steps):
        assert "does not match" in error, error
        assert "last operations of rank" in error


class Breaks(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise ArithmeticError("the data of this rank is broken")


def fail_on_one_rank():
    import torch.distributed as dist
    torch.manual_seed(0)
    engine = capstan.initialize(Branches(8), CONFIG)
    try:
        loss = engine(torch.ones(1, 8), "bc")
        engine.backward(Breaks.apply(loss) if dist.get_rank() == 1 else loss)
        engine.step()
    except (capstan.CommError, ArithmeticError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"  # rank 1 lives on: its peers must be told, not see it end
    return "no error"


def test_peers_are_told_why_a_rank_that_lives_on_left_the_step():
    told, own = ranks.run(2, fail_on_one_rank)
    assert "the data of this rank is broken" in own
    assert told.startswith("CommError") and "rank 1 failed in backward" in told and "is broken" in told, told


def start(change):
    import copy

    import torch.distributed as dist
    config, model = copy.deepcopy(CONFIG), Branches(8)
    optimizer = None
    if change == "stage":
        config["zero_optimization"]["stage"] = 1 + dist.get_rank()
    elif change == "lr":
        config["optimizer"]["params"]["lr"] = 1e-3 * (1 + dist.get_rank())
    elif change == "clipping":
        config["gradient_clipping"] = 1.0 + dist.get_rank()
    else:
        del config["optimizer"]
        config["zero_optimization"]["stage"] = 0
        kinds = [torch.optim.SGD, torch.optim.AdamW] if change == "class" else [torch.optim.SGD] * 2
        optimizer = kinds[dist.get_rank()](model.parameters(), lr=0.5 if change == "class" else 0.5 + dist.get_rank())
    try:
        capstan.initialize(model, config, optimizer=optimizer)
    except capstan.ConfigError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("change, what", [
    ("stage", "zero_optimization.stage is 1 on rank 0, and 2 on rank 1"),
    ("lr", "optimizer.params.lr is 0.001 on rank 0, and 0.002 on rank 1"),
    ("clipping", "gradient_clipping is 1.0 on rank 0, and 2.0 on rank 1"),
    ("class", "optimizer is SGD on rank 0, and AdamW on rank 1"),
    ("its rate", "optimizer.param_groups[0]['lr'] is 0.5 on rank 0, and 1.5 on rank 1")])
def test_ranks_with_different_configurations_are_told_key_and_values(change, what):
    for error in ranks.run(2, start, change):
        assert "ranks 0 and 1 do not have the same configuration" in error and what in error, error

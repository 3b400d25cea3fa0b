"""Wrong input ends in an exception of the right class, with what, where and fix; nobody hangs."""

import pytest
import ranks
import torch
import torch.distributed as dist

import capstan

CONFIG = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}}


def make(config=None, model=None):
    model = model or torch.nn.Linear(4, 2)
    return capstan.initialize(model, config or CONFIG, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


def expect(kind, call, text):
    try:
        call()
    except kind as error:
        assert text in str(error), str(error)
        assert error.what and error.where and error.fix
        return
    raise AssertionError(f"no {kind.__name__}")


def wrong_types():
    expect(capstan.ConfigError, lambda: capstan.initialize("no model", CONFIG), "str")
    expect(capstan.ConfigError, lambda: make({**CONFIG, "gradient_cliping": 1.0}), "gradient_clipping")
    expect(capstan.ConfigError, lambda: make({**CONFIG, "train_batch_size": "many"}), "train_batch_size")
    expect(capstan.ConfigError, lambda: make({**CONFIG, "gradient_clipping": True}), "true is given, but a number")
    engine = make()
    expect(capstan.ConfigError, lambda: engine.backward(3.0), "float")
    expect(capstan.ConfigError, lambda: engine.backward(engine(torch.ones(2, 4))), "one element")
    engine.close()
    expect(capstan.ConfigError, lambda: engine(torch.ones(2, 4)), "closed")
    engine.close()  # again: nothing happens


def strangers():
    model, other = torch.nn.Linear(4, 2), torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(list(model.parameters()) + list(other.parameters()), lr=0.1)
    expect(capstan.ConfigError, lambda: capstan.initialize(model, CONFIG, optimizer=optimizer), "[3, 4]")


def nan_loss():
    """Nothing moves, not even by decay, and the next step is the one that a new engine would take."""
    model, other = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
    other.load_state_dict(model.state_dict())
    engines = [capstan.initialize(each, CONFIG, optimizer=torch.optim.AdamW(each.parameters(), lr=0.1, weight_decay=0.5))
               for each in (model, other)]
    before = model.weight.detach().clone()
    engines[0].backward((engines[0](torch.ones(2, 4)) * float("nan")).sum())
    report = engines[0].step()
    assert not report.applied and report.non_finite
    assert torch.equal(model.weight, before)
    for engine in engines:
        engine.backward(engine(torch.ones(2, 4)).square().sum())
        assert engine.step().applied
    assert torch.equal(model.weight, other.weight) and not torch.equal(model.weight, before)


class Gather(torch.nn.Linear):
    """Its backward asks for as many elements as `size` says."""

    size = 4

    def forward(self, x):
        return super().forward(x) + self.bias[:1].expand(self.size)[torch.tensor([0, 1])]


def out_of_memory():
    """A user who catches it and goes on with less gets the run that never asked for more."""
    torch.manual_seed(0)
    model = Gather(4, 2)
    other = Gather(4, 2)
    other.load_state_dict(model.state_dict())
    engine = make(model=model)
    model.size = 1 << 58
    try:
        engine.backward(engine(torch.ones(2, 4)).sum())
        raise AssertionError("2^60 bytes were given")
    except torch.OutOfMemoryError as error:
        assert isinstance(error, capstan.OutOfMemoryError) and isinstance(error, RuntimeError)
        assert "can't allocate memory" in error.args[0] and error.where and error.fix
    model.size = 4
    engine.zero_grad()
    plain = make(model=other)
    for each in (engine, plain):
        each.backward(each(torch.ones(2, 4)).sum())
        assert each.step().applied
    assert torch.equal(model.weight, other.weight)


def find_a_batch():
    """As scripts do that let Accelerate look for a batch that fits."""
    from accelerate.utils import find_executable_batch_size
    tried = []

    @find_executable_batch_size(starting_batch_size=4)
    def train(batch_size):
        tried.append(batch_size)
        model = Gather(4, 2)
        model.size = 4 if batch_size < 3 else 1 << 58
        engine = make(model=model)
        engine.backward(engine(torch.ones(2, 4)).sum())
        return engine.step().applied

    assert train()
    assert tried[0] == 4 and tried[-1] == 2, tried


def different_models():
    try:
        make(model=torch.nn.Linear(4, 2 + dist.get_rank()))
    except capstan.CommError as error:
        assert "different models" in error.what and error.fix
        return
    raise AssertionError("ranks with different models agreed")


@pytest.mark.parametrize("check", [wrong_types, strangers, nan_loss, out_of_memory])
def test_on_one_rank(check):
    ranks.run(1, check)


def test_accelerate_finds_a_batch_that_fits():
    pytest.importorskip("accelerate", reason="needs the package accelerate")
    ranks.run(1, find_a_batch)


def test_ranks_with_different_models_both_raise():
    ranks.run(2, different_models)


def one_rank_fails():
    model = torch.nn.Linear(4, 2)
    engine = make(model=model)
    loss = engine(torch.ones(2, 4)).sum()

    def fail(grad):
        raise ValueError("broken hook")

    if dist.get_rank() == 1:
        loss.register_hook(fail)
    try:
        engine.backward(loss)
        engine.step()
    except (capstan.Error, ValueError, RuntimeError) as error:
        return type(error).__name__
    return "nothing"


def test_a_rank_that_fails_does_not_hang_the_other(monkeypatch):
    monkeypatch.setattr(ranks, "TIMEOUT_S", 20)
    first, second = ranks.run(2, one_rank_fails)
    assert second == "ValueError" or second == "RuntimeError"
    assert first == "CommError"

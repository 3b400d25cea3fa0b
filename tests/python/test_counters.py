"""What DeepSpeedEngine counts is the core's: after a new batch size, a script's own value, a load, and the engine's end."""

import pytest
import ranks
import torch
from torch import nn

deepspeed = pytest.importorskip("deepspeed", reason="needs the package deepspeed")

NAMES = ("global_steps", "micro_steps", "global_samples", "skipped_steps")


def make(stage=1, **more):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    config = {"train_micro_batch_size_per_gpu": 3, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
              "zero_optimization": {"stage": stage}, **more}
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]


def backward(engine):
    engine.backward(engine(torch.ones(3, 4)).square().mean())


def train(engine, micro_batches):
    for _ in range(micro_batches):
        backward(engine)
        engine.step()


def counters(engine):
    return tuple(getattr(engine, name) for name in NAMES)


def another_batch_size():
    engine = make(gradient_accumulation_steps=2)
    assert counters(engine) == (0, 0, 0, 0)
    train(engine, 4)
    seen = [counters(engine)]
    engine.set_train_batch_size(24)  # 3 a rank, 2 ranks, 4 times
    train(engine, 4)
    seen.append(counters(engine))
    engine.set_train_micro_batch_size(5)
    train(engine, 4)
    return seen + [counters(engine)]


def test_samples_follow_the_batch_size():
    assert ranks.run(2, another_batch_size) == [[(2, 4, 24, 0), (3, 8, 48, 0), (4, 12, 88, 0)]] * 2


def unmanaged():
    engine = make(gradient_accumulation_steps=4, managed_gradient_accumulation=False)
    for backwards in (1, 3):
        for _ in range(backwards):
            backward(engine)
        assert engine.is_gradient_accumulation_boundary()
        engine.step()
    return counters(engine)


def test_a_caller_who_accumulates_himself_gets_the_samples_of_his_backwards():
    assert ranks.run(2, unmanaged) == [(2, 2, 24, 0)] * 2


def set_by_script(folder):
    engine, plain = make(), make()
    train(engine, 1)
    train(plain, 1)
    engine.global_steps, engine.global_samples, engine.skipped_steps = 100, 7000, 5
    train(engine, 2)
    train(plain, 2)
    assert counters(engine) == (102, 3, 7006, 5)
    assert engine.core.optimizer_steps == 3  # bias correction goes on where it was
    for ours, theirs in zip(engine.module.parameters(), plain.module.parameters()):
        assert torch.equal(ours, theirs)
    engine.save_checkpoint(folder)
    other = make()
    path, _ = other.load_checkpoint(folder)
    assert path.endswith("global_step102") and counters(other) == counters(engine)
    assert other.core.optimizer_steps == 3
    engine.destroy()
    assert counters(engine) == counters(other)
    return True


def test_what_a_script_sets_is_counted_from_and_saved(tmp_path):
    assert ranks.run(1, set_by_script, str(tmp_path)) == [True]


def set_micro_steps():
    engine = make(gradient_accumulation_steps=2)
    train(engine, 1)
    assert engine.is_gradient_accumulation_boundary()
    engine.micro_steps = 0
    assert not engine.is_gradient_accumulation_boundary()
    return True


def test_a_script_that_sets_micro_steps_moves_the_boundary():
    assert ranks.run(1, set_micro_steps) == [True]


def resumed_within_a_step(folder):
    engine = make(gradient_accumulation_steps=2)
    train(engine, 3)
    engine.save_checkpoint(folder)
    other = make(gradient_accumulation_steps=2)
    other.load_checkpoint(folder)
    assert counters(other) == (1, 3, 6, 0) and not other.is_gradient_accumulation_boundary()
    train(other, 2)
    return counters(other)


def test_a_step_that_was_saved_half_done_is_repeated_whole(tmp_path):
    assert ranks.run(1, resumed_within_a_step, str(tmp_path)) == [(2, 5, 12, 0)]

"""fp16: the loss scale over steps that overflow, and losses that are themselves fp16."""

import pytest
import ranks
import torch
from torch import nn

deepspeed = pytest.importorskip("deepspeed", reason="needs the package deepspeed")

INF, NAN = float("inf"), float("nan")


def make(stage, optimizer="AdamW", model=None, **fp16):
    torch.manual_seed(0)
    model = nn.Linear(2, 2, bias=False) if model is None else model
    config = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": optimizer, "params": {"lr": 0.00015}},
              "fp16": {"enabled": True, **fp16}, "zero_optimization": {"stage": stage}}
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[:2]


def scales(stage, gradients, **options):
    """After each step whose gradient has this value."""
    engine, optimizer = make(stage, **options)
    found = []
    for steps, value in enumerate(gradients, 1):
        engine.backward((engine(torch.ones(1, 2).half()).float() * value).sum())
        engine.step()
        found.append(optimizer.cur_scale)
        assert optimizer.loss_scale_config.cur_iter == steps and optimizer.overflow == (value not in (0.01,))
        assert optimizer.loss_scale_config.cur_scale == optimizer.cur_scale == engine.optimizer.loss_scale
    assert optimizer.loss_scale_config.min_loss_scale == options.get("min_loss_scale", 1)
    return found


def at_every_overflow():
    """The same at every stage: of the first overflows as many are tolerated as the hysteresis says less one."""
    import capstan
    mixed = [INF, NAN, 0.01, 0.01, 0.01, -INF, INF]
    for optimizer in ("AdamW", "Lamb"):
        how = {"optimizer": optimizer, "loss_scale_window": 2, "initial_scale_power": 4}
        for stage in range(3 if optimizer == "Lamb" else 4):
            assert scales(stage, mixed, **how) == [16, 8, 8, 8, 16, 16, 8], stage
            assert scales(stage, mixed, **how, hysteresis=1) == [8, 4, 4, 4, 8, 4, 2], stage
            assert scales(stage, [INF] * 3, **how, min_loss_scale=4) == [16, 8, 4], stage
            with pytest.raises(capstan.Error, match="minimum"):
                scales(stage, [INF] * 8, **how)


def test_several_overflows_in_a_row_give_the_sequences_that_users_know():
    ranks.run(1, at_every_overflow)

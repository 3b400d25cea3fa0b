"""Schedules of the package deepspeed, and torch's, as objects that a script makes on its own optimizer."""

import warnings

import pytest
import ranks
import torch

deepspeed = pytest.importorskip("deepspeed", reason="needs the package deepspeed")

from deepspeed.runtime.lr_schedules import LRRangeTest, OneCycle, WarmupCosineLR, WarmupLR  # noqa: E402


def two_groups(kind=torch.optim.AdamW, model=None):
    model = model or torch.nn.Linear(4, 4)
    return kind([{"params": [model.weight], "lr": 0.1}, {"params": [model.bias], "lr": 0.2}], betas=(0.7, 0.99))


def rates(optimizer):
    return [group["lr"] for group in optimizer.param_groups]


def momenta(optimizer):
    return [group["betas"] for group in optimizer.param_groups]


def test_one_cycle_has_bounds_for_each_group():
    optimizer = two_groups()
    schedule = OneCycle(optimizer, [0.001, 0.002], (0.01, 0.02), cycle_first_step_size=5, cycle_min_mom=[0.8, 0.85],
                        cycle_max_mom=[0.9, 0.95])
    assert schedule.min_lrs == [0.001, 0.002] and schedule.max_lrs == [0.01, 0.02]
    assert schedule.get_last_lr() == rates(optimizer) == [0.001, 0.002]
    assert momenta(optimizer) == [(0.8, 0.99), (0.85, 0.99)]  # low once, as the first update is known
    assert schedule.get_mom() == [(0.9, 0.99), (0.95, 0.99)]  # and the curve begins high
    schedule.step(batch_iteration=4)
    assert rates(optimizer) == pytest.approx([0.01, 0.02])
    assert schedule.get_mom() == momenta(optimizer) == [(pytest.approx(0.8), 0.99), (pytest.approx(0.85), 0.99)]
    schedule.step(9)
    assert rates(optimizer) == pytest.approx([0.001, 0.002])
    assert [betas[0] for betas in momenta(optimizer)] == pytest.approx([0.9, 0.95])
    for name in ("cycle_min_lr", "cycle_max_lr", "cycle_min_mom", "cycle_max_mom"):
        before = rates(optimizer), momenta(optimizer)
        with pytest.raises(ValueError, match=f"{name} has 3 values, .* 2 parameter groups"):
            OneCycle(optimizer, **{"cycle_min_lr": 0.1, "cycle_max_lr": 0.2, name: [0.15] * 3})
        assert (rates(optimizer), momenta(optimizer)) == before


def test_warm_up_ends_at_each_group_s_own_rate():
    optimizer = two_groups()
    schedule = WarmupLR(optimizer, warmup_min_lr=[0.01, 0.02], warmup_num_steps=10, warmup_type="linear")
    assert schedule.max_lrs == [0.1, 0.2] and schedule.min_lrs == [0.01, 0.02]
    assert schedule.get_last_lr() == [0.01, 0.02]
    schedule.step(5)
    assert rates(optimizer) == pytest.approx([0.055, 0.11])
    schedule.step(10)
    assert schedule.get_last_lr() == rates(optimizer) == pytest.approx([0.1, 0.2])


@pytest.mark.parametrize("make, start", [
    (lambda optimizer: WarmupCosineLR(optimizer, 100, warmup_num_steps=10), [0.0, 0.0]),
    (lambda optimizer: LRRangeTest(optimizer, [0.001, 0.003]), [0.001, 0.003]),
    (lambda optimizer: WarmupLR(optimizer, last_batch_iteration=3), [0.1, 0.2])])  # resumed: as they are
def test_the_last_rates_are_known_before_the_first_step(make, start):
    optimizer = two_groups()
    assert make(optimizer).get_last_lr() == start == rates(optimizer)


MADE = {"lambda": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
        "cycle": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, [0.1, 0.2], total_steps=10),
        "warm-up": lambda optimizer: WarmupLR(optimizer, warmup_num_steps=4, warmup_type="linear")}


def train(kind, made, stage):
    """Rates after each of four steps, and the weights; without a stage in plain torch."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = two_groups(kind, model)
    schedule = MADE[made](optimizer)
    if stage is None:
        engine = None
    else:
        config = {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0,
                  "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}}
        engine, _, _, same = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule, config=config)
        assert same is schedule
    seen = []
    for _ in range(4):
        loss = (engine or model)(torch.ones(2, 4)).square().mean()
        if engine:
            engine.backward(loss)
            engine.step()
        else:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        seen.append(schedule.get_last_lr())
        assert engine is None or engine.get_lr() == seen[-1]
    weight = deepspeed.utils.safe_get_full_fp32_param(model.weight) if engine else model.weight
    return seen, weight.detach().clone()


def train_everywhere():
    warnings.simplefilter("error")  # such as torch's, of a schedule that steps before its optimizer
    for kind in (torch.optim.AdamW, deepspeed.ops.adam.FusedAdam):
        for made in MADE:
            expected, weight = train(kind, made, None)
            for stage in (0, 1, 2, 3):
                seen, got = train(kind, made, stage)
                assert seen == expected and torch.allclose(got, weight, atol=1e-6), (kind, made, stage)


def test_a_schedule_made_on_a_bare_optimizer_moves_it_at_every_stage():
    ranks.run(1, train_everywhere)


def misused():
    """What is said of a schedule that was made on another optimizer."""
    model, said = torch.nn.Linear(4, 4), []
    config = {"train_batch_size": 1, "optimizer": {"type": "AdamW"}}
    for made in MADE.values():
        with pytest.raises(AssertionError, match="needs the optimizer object"):
            deepspeed.initialize(model=model, lr_scheduler=made(two_groups()), config=config)
    deepspeed.utils.logger.addFilter(lambda record: said.append(record.getMessage()) or True)
    deepspeed.initialize(model=model, optimizer=two_groups(model=model), lr_scheduler=MADE["lambda"](two_groups()),
                         config={"train_batch_size": 1})
    return said


def test_a_schedule_of_another_optimizer_is_refused_or_said():
    assert any("belongs to another optimizer" in line for line in ranks.run(1, misused)[0])

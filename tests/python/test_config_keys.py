"""Keys of the configuration reach the code that acts on them, in both packages."""

import logging

import pytest
import ranks
import torch
from ranks import alone
from torch import nn

import capstan
import deepspeed
from capstan import process_group

STEPS = 6
SCHEDULE = {"type": "WarmupLR", "params": {"warmup_num_steps": 4, "warmup_max_lr": 0.05, "warmup_type": "linear"}}
ADAMW = {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}}


def make_model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6))


def config_of(**more):
    return {"train_micro_batch_size_per_gpu": 2, **more}


def deepspeed_engine(**more):
    return deepspeed.initialize(model=make_model(), config=config_of(**more))[0]


def train(engine, steps=STEPS):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        engine.backward(engine(torch.randn(2, 6, generator=generator)).square().mean())
        engine.step()
    weights = [p.detach().clone() for p in engine.module.parameters()]
    engine.close()
    return weights


# The optimizer and its schedule

@alone
def test_an_engine_trains_with_the_configurations_own_optimizer_and_schedule():
    with_both = train(capstan.initialize(make_model(), config_of(optimizer=ADAMW, scheduler=SCHEDULE)))
    with_one = train(capstan.initialize(make_model(), config_of(optimizer=ADAMW)))
    expected = train(deepspeed_engine(optimizer=ADAMW, scheduler=SCHEDULE))
    assert all(torch.equal(got, want) for got, want in zip(with_both, expected))
    assert not any(torch.equal(got, other) for got, other in zip(with_both, with_one))


@alone
def test_a_schedule_that_could_not_act_is_refused():
    model = make_model()
    with pytest.raises(capstan.ConfigError, match="schedule"):
        capstan.initialize(model, config_of(scheduler=SCHEDULE), optimizer=torch.optim.SGD(model.parameters(), lr=1))


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
@alone
def test_groups_of_the_configuration_have_rates_of_their_own(optimizer):
    groups = {"still": {"parameters": ["0.*"], "lr": 0, "weight_decay": 0}}
    section = {"type": optimizer, "params": {"lr": 0.1}}
    before = [p.detach().clone() for p in make_model().parameters()]
    for engine in (deepspeed_engine(optimizer=section, capstan={"parameter_groups": groups}),
                   capstan.initialize(make_model(), config_of(optimizer=section,
                                                              capstan={"parameter_groups": groups}))):
        after = train(engine)
        assert [torch.equal(a, b) for a, b in zip(before, after)] == [True, True, False, False]


@alone
def test_groups_of_the_configuration_beside_an_optimizer_object_are_refused():
    model = make_model()
    groups = {"still": {"parameters": ["0.*"], "lr": 0}}
    with pytest.raises(capstan.ConfigError, match="groups"):
        deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1),
                             config=config_of(capstan={"parameter_groups": groups}))


@pytest.mark.parametrize("section", [
    {"type": "AdamW", "params": {"lr": 0.1, "foreach": True, "fused": False, "capturable": False}},
    {"type": "sgd", "params": {"lr": 0.1, "momentum": 0.5}},
])
@alone
def test_an_optimizer_is_found_as_the_documentation_spells_it(section):
    engine = deepspeed_engine(optimizer=section, scheduler={**SCHEDULE, "type": "warmuplr"})
    assert type(engine.lr_scheduler).__name__ == "WarmupLR"
    engine.close()


@alone
def test_every_parameter_of_adagrad_acts_where_it_is_offloaded():
    offload = {"stage": 1, "offload_optimizer": {"device": "cpu"}}
    params = {"lr": 0.1, "initial_accumulator_value": 4.0, "lr_decay": 0.5}
    with_all = train(deepspeed_engine(optimizer={"type": "Adagrad", "params": params}, zero_optimization=offload))
    expected = train(deepspeed_engine(optimizer={"type": "Adagrad", "params": params}))
    for got, want in zip(with_all, expected):
        torch.testing.assert_close(got, want)


@alone
def test_states_of_another_dtype_than_the_optimizer_makes_are_refused():
    model = make_model()
    with pytest.raises(capstan.ConfigError, match="optimizer_state"):
        capstan.initialize(model, config_of(capstan={"optimizer_state_dtype": "bf16"}),
                           optimizer=torch.optim.AdamW(model.parameters()))


@alone
def test_an_optimizer_that_asks_for_16_bit_states_gets_them():
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    for fp32, dtype in ((True, torch.float32), (False, torch.bfloat16)):
        model = make_model()
        engine, *_ = deepspeed.initialize(
            model=model, optimizer=DeepSpeedCPUAdam(model.parameters(), fp32_optimizer_states=fp32),
            config=config_of(bf16={"enabled": True}, zero_optimization={"stage": 1}))
        assert {state["exp_avg"].dtype for state in engine.basic_optimizer.state.values()} == {dtype}
        engine.close()


class Recorder:
    """Stands before the core and notes which of its methods are called."""

    def __init__(self, core, calls):
        self._core, self._calls = core, calls

    def __getattr__(self, name):
        self._calls.append(name)
        return getattr(self._core, name)


@alone
def test_rates_that_were_set_are_known_before_backward():
    """Updates that begin in backward would be made with the old ones, and all be dropped at the step."""
    engine = deepspeed_engine(optimizer=ADAMW)
    for rate in (0.1, 0.2, 0.3):
        calls = []
        core, engine.core = engine.core, Recorder(engine.core, calls)
        engine.basic_optimizer.param_groups[0]["lr"] = rate
        engine.backward(engine(torch.ones(2, 6)).sum())
        assert calls.index("set_groups") < calls.index("backward")
        calls.clear()
        engine.step()
        assert "set_groups" not in calls
        engine.core = core
    engine.close()


# The ranks

@alone
def test_a_timeout_and_the_order_of_sums_reach_the_group(monkeypatch):
    seen = []
    make = process_group._C.Group

    def note(*args):
        seen.append((args[2], args[4]))
        return make(*args)

    monkeypatch.setattr(process_group._C, "Group", note)
    capstan.initialize(make_model(), config_of(capstan={"timeout_s": 17, "reduce_in_rank_order": False})).close()
    capstan.initialize(make_model(), config_of()).close()
    theirs = torch.distributed.group.WORLD._get_backend(torch.device("cpu")).options._timeout.total_seconds()
    assert theirs != 17
    assert seen == [(17, False), (theirs, True)]


@alone
def test_a_backend_that_the_ranks_do_not_talk_over_is_refused():
    with pytest.raises(capstan.ConfigError, match="gloo"):
        capstan.initialize(make_model(), config_of(capstan={"backend": "mpi"}))


@alone
def test_the_seed_decides_the_order_of_samples():
    def order(**own):
        engine = deepspeed_engine(optimizer=ADAMW, capstan=own)
        samples = [int(x) for batch in engine.deepspeed_io(torch.arange(64)) for x in batch]
        engine.close()
        return samples

    assert sorted(order(seed=5)) == list(range(64))
    assert order(seed=5) == order(seed=5) != order(seed=6)
    assert order() == order(seed=0)  # as DistributedSampler's default has it


# What a run says

@pytest.fixture
def said():
    """Every line of the package's logger."""
    lines = []

    class Keep(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())

    from deepspeed.utils.logging import logger
    before, keep = logger.level, Keep()
    logger.addHandler(keep)
    yield lines
    logger.removeHandler(keep)
    logger.setLevel(before)
    for handler in logger.handlers:
        handler.setLevel(before)


@pytest.mark.parametrize("key, value, text", [
    ("wall_clock_breakdown", True, "bwd_inner"),
    ("memory_breakdown", True, "memory after backward"),
    ("comms_logger", {"enabled": True}, "communication since"),
    ("dump_state", True, "train_micro_batch_size_per_gpu"),
    ("steps_per_print", 2, "step=4, skipped=0, lr=[0.01]"),
    ("steps_per_print", 1.5, "step=4, skipped=0, lr=[0.01]"),
])
@alone
def test_what_a_configuration_asks_to_be_told_is_told(said, monkeypatch, key, value, text):
    monkeypatch.delenv("DS_LOG_LEVEL", raising=False)
    train(deepspeed_engine(optimizer=ADAMW))
    assert not said
    train(deepspeed_engine(optimizer=ADAMW, **{key: value}))
    found = [line for line in said if text in line]
    assert found and (key != "steps_per_print" or len(found) == 1), said


@alone
def test_the_speed_is_told_unless_its_timer_is_off(said, monkeypatch):
    monkeypatch.delenv("DS_LOG_LEVEL", raising=False)
    for enabled in (True, False):
        said.clear()
        train(deepspeed_engine(optimizer=ADAMW, steps_per_print=2, timers={"throughput": {"enabled": enabled}}))
        assert any("SamplesPerSec" in line for line in said) == enabled, said

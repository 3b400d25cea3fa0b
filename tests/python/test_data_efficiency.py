"""Curricula, progressive layer drop: what a step tells the model, in both packages, and again after a restart."""

import math

import pytest
import ranks
import torch
from torch import nn

import capstan
from capstan.errors import ConfigError

deepspeed = pytest.importorskip("deepspeed", reason="needs the package deepspeed")

from deepspeed.runtime.data_pipeline.curriculum_scheduler import CurriculumScheduler  # noqa: E402
from deepspeed.runtime.progressive_layer_drop import ProgressiveLayerDrop  # noqa: E402

GROWTH = {"min_difficulty": 2, "max_difficulty": 10, "schedule_type": "fixed_linear",
          "schedule_config": {"total_curriculum_step": 8, "difficulty_step": 2}}
LENGTHS = [2, 4, 4, 6, 6, 8, 8, 10, 10, 10]
CURRICULUM = {"enabled": True, "curriculum_type": "seqlen", **GROWTH}


class Listener(nn.Linear):
    """Keeps the keywords that a forward was given."""

    def __init__(self):
        super().__init__(4, 4)
        self.heard = []

    def forward(self, x, **keywords):
        self.heard.append(keywords)
        return super().forward(x).square().mean()


def config(**more):
    return {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
            "optimizer": {"type": "SGD", "params": {"lr": 1e-2}}, **more}


def engine_of(package, **more):
    model = Listener()
    if package == "capstan":
        return capstan.initialize(model, config(**more)), model
    return deepspeed.initialize(model=model, config=config(**more), model_parameters=model.parameters())[0], model


def steps(engine, count):
    for _ in range(2 * count):
        engine.backward(engine(torch.ones(2, 4)))
        engine.step()


def told(package, folder):
    """What the forwards of ten steps hear: six, and four of another engine that goes on from a checkpoint."""
    drop = {"enabled": True, "theta": 0.5, "gamma": 0.1}
    heard = []
    for begin, count in ((0, 6), (6, 4)):
        engine, model = engine_of(package, curriculum_learning=CURRICULUM, progressive_layer_drop=drop)
        if begin:
            engine.load_checkpoint(folder)
        steps(engine, count)
        heard += model.heard
        engine.eval()
        engine(torch.ones(2, 4))
        assert model.heard[-1] is not heard[-1] and model.heard[-1] == {}, "nothing changes outside of training"
        if not begin:
            engine.save_checkpoint(folder)
        engine.close()
    return heard


@pytest.mark.parametrize("package", ["capstan", "deepspeed"])
def test_each_forward_is_told_the_length_and_the_share_of_layers_of_its_step(package, tmp_path):
    heard = ranks.run(1, told, package, str(tmp_path))[0]
    assert [each["curriculum_seqlen"] for each in heard[::2]] == LENGTHS
    assert [each["curriculum_seqlen"] for each in heard[1::2]] == LENGTHS  # both micro-batches of a step
    expected = [1.0] + [0.5 * math.exp(-0.1 * step) + 0.5 for step in range(9)]
    assert [each["pld_theta"] for each in heard[::2]] == pytest.approx(expected)
    assert all(each["progressive_layer_drop"] is True for each in heard)


def off():
    """Sections that are not enabled tell nothing."""
    engine, model = engine_of("deepspeed", curriculum_learning={**CURRICULUM, "enabled": False},
                              progressive_layer_drop={"enabled": False})
    steps(engine, 1)
    return model.heard, engine.get_pld_theta(), engine.curriculum_scheduler_legacy


def test_sections_that_are_off_tell_nothing():
    assert ranks.run(1, off)[0] == ([{}, {}], None, None)


def members(theta):
    engine, _ = engine_of("deepspeed", curriculum_learning={**CURRICULUM, "schedule_type": "custom"},
                          progressive_layer_drop={"enabled": True, "theta": theta, "gamma": 0.001})
    with pytest.raises(ConfigError, match="no function yet"):
        engine(torch.ones(2, 4))
    engine.set_custom_curriculum_learning_schedule(lambda step: min(10, 3 * step))
    found = []
    for _ in range(5):
        steps(engine, 1)
        found.append((engine.get_pld_theta(), engine.module.heard[-1]["curriculum_seqlen"]))
    assert engine.pld_enabled() and engine.pld_params() == {"theta": theta, "gamma": 0.001}
    assert engine.curriculum_enabled_legacy() and engine.curriculum_params_legacy()["min_difficulty"] == 2
    return found


@pytest.mark.parametrize("theta", [0, 0.1, 0.9, 1.0])
def test_deepspeed_s_members_say_what_the_model_was_told(theta):
    found = ranks.run(1, members, theta)[0]
    assert [share for share, _ in found] == pytest.approx([(1 - theta) * math.exp(-0.001 * i) + theta for i in range(5)])
    assert [length for _, length in found] == [3, 6, 9, 10, 10]  # at the maximum it stays


def test_the_scheduler_alone():
    scheduler = CurriculumScheduler(GROWTH)
    assert scheduler.get_current_difficulty() == 2
    assert [scheduler.update_difficulty(step) for step in range(1, 11)] == LENGTHS
    state = scheduler.get_state()
    assert state["current_difficulty"] == 10 and state["schedule_type"] == "fixed_linear"
    other = CurriculumScheduler(GROWTH)
    other.set_state(dict(state, current_difficulty=6))
    assert other.get_current_difficulty() == 6
    stairs = CurriculumScheduler({"min_difficulty": 1, "max_difficulty": 5, "schedule_type": "fixed_discrete",
                                  "schedule_config": {"difficulty": [1, 2, 5], "max_step": [2, 4]}})
    assert [stairs.get_difficulty(step) for step in range(1, 7)] == [1, 1, 2, 2, 5, 5]


def test_progressive_layer_drop_alone():
    drop = ProgressiveLayerDrop(theta=0.5, gamma=0.001)
    assert drop.get_state() == {"progressive_layer_drop": True, "pld_theta": 1.0}
    drop.update_state(100)
    assert drop.get_theta() == pytest.approx(0.5 * math.exp(-0.1) + 0.5)


@pytest.mark.parametrize("section, words", [
    ({"curriculum_learning": {"enabled": True}}, "min_difficulty is missing"),
    ({"curriculum_learning": {**CURRICULUM, "max_difficulty": 1}}, "max_difficulty 1 is below min_difficulty 2"),
    ({"curriculum_learning": {**CURRICULUM, "curriculum_type": "vocabulary"}}, "curriculum_type"),
    ({"progressive_layer_drop": {"enabled": True, "theta": -1}}, "theta"),
])
@pytest.mark.parametrize("package", ["capstan", "deepspeed"])
def test_what_cannot_work_is_refused_before_the_first_step(package, section, words):
    def made():
        with pytest.raises(ConfigError, match=words):
            engine_of(package, **section)

    ranks.run(1, made)

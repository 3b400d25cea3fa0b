"""One reading of a configuration, C++'s, behind both packages: values, places, all problems at once."""

import json
import logging

import pytest
import ranks
import torch
from torch import nn

import capstan
import deepspeed
from test_config_keys import alone, config_of, deepspeed_engine, make_model

THREE_MISTAKES = """{
  "train_batch_size": 4,
  "optimizer": {"type": "AdmaW", "params": {"lr": 1e-5}},
  "bff16": {"enabled": true},
  "scheduler": {"type": "WarmupDecayLR", "params": {}}
}
"""
DOORS = {"capstan": lambda config: capstan.initialize(make_model(), config),
         "deepspeed": lambda config: deepspeed.initialize(model=make_model(), config=config)[0]}
BOTH = pytest.mark.parametrize("door", DOORS)


def error_of(door, config):
    """What initialize() raises, as every caller may have learnt to catch it."""
    with pytest.raises(capstan.ConfigError) as caught:
        DOORS[door](config)
    assert isinstance(caught.value, ValueError)
    if door == "deepspeed":
        assert isinstance(caught.value, deepspeed.DeepSpeedConfigError) and isinstance(caught.value, AssertionError)
    return str(caught.value)


# Places and completeness

@BOTH
@alone
def test_all_mistakes_of_a_file_are_told_at_once_each_at_its_line_and_column(door, tmp_path):
    path = tmp_path / "bad.json"
    path.write_text(THREE_MISTAKES)
    for given in (path, str(path)):
        told = error_of(door, given)
        assert "3 problems" in told
        assert f"{path}:3:25 (optimizer.type)" in told and 'did you mean "AdamW"?' in told
        assert f"{path}:4:3" in told and 'did you mean "bf16"?' in told
        assert f"{path}:5:52 (scheduler.params)" in told and '"total_num_steps" is missing' in told
    told = error_of(door, json.loads(THREE_MISTAKES))
    assert "3 problems" in told and "(optimizer.type)" in told and "(bff16)" in told


@alone
def test_the_file_of_a_programs_arguments_is_the_place_too(tmp_path):
    import argparse
    path = tmp_path / "bad.json"
    path.write_text(THREE_MISTAKES)
    with pytest.raises(deepspeed.DeepSpeedConfigError) as caught:
        deepspeed.initialize(args=argparse.Namespace(deepspeed_config=str(path)), model=make_model())
    assert f"{path}:3:25" in str(caught.value)


@BOTH
@alone
def test_a_misspelt_section_of_parameters_is_not_passed_over(door):
    told = error_of(door, config_of(optimizer={"type": "AdamW", "parms": {"lr": 1e-5}}))
    assert "(optimizer.parms)" in told and 'did you mean "params"?' in told


@BOTH
@alone
def test_a_doubled_key_a_missing_file_and_a_file_of_accelerate_are_named(door, tmp_path):
    path = tmp_path / "ds.json"
    path.write_text('{"train_batch_size": 4,\n "train_batch_size": 8, "stage": 1}')
    told = error_of(door, path)
    assert f"{path}:2:2" in told and "given twice" in told and 'belongs in "zero_optimization"' in told
    assert "no such file" in error_of(door, tmp_path / "other.json")
    path.write_text("")
    assert "the configuration is empty" in error_of(door, path)
    path.write_text("compute_environment: LOCAL_MACHINE\ndeepspeed_config:\n  deepspeed_config_file: a.json\n"
                    "distributed_type: DEEPSPEED\n")
    assert "an Accelerate file" in error_of(door, path)


@BOTH
@alone
def test_a_dict_that_holds_itself_is_an_error(door):
    config = config_of()
    config["fp16"] = config
    assert "deeper than 64 levels" in error_of(door, config)


# Values

@alone
def test_text_is_read_as_cpp_reads_it():
    engine = deepspeed_engine(fp16={"enabled": "false"}, bf16={"enabled": "yes"}, dataloader_drop_last="off",
                              gradient_clipping="0.5", zero_optimization={"stage": "2", "overlap_comm": "no"},
                              optimizer={"type": "adamw", "params": {"lr": "1e-4", "weight_decay": "auto"}})
    assert (engine.fp16_enabled(), engine.bfloat16_enabled(), engine.dataloader_drop_last()) == (False, True, False)
    assert (engine.gradient_clipping(), engine.zero_optimization_stage()) == (0.5, 2)
    assert engine.zero_overlap_comm() is False and engine._config.zero_config.stage == 2
    assert engine.optimizer_params() == {"lr": 1e-4, "weight_decay": 0.0} and engine.get_lr() == [1e-4]
    assert next(engine.module.parameters()).dtype == torch.bfloat16
    engine.close()


@BOTH
@pytest.mark.parametrize("key, value", [("train_batch_size", 16.5), ("fp16", {"enabled": "flase"}),
                                        ("zero_optimization", {"stage": True}), ("gradient_clipping", 10**400)])
@alone
def test_what_is_not_of_its_type_is_refused(door, key, value):
    assert "is expected" in error_of(door, {**config_of(), key: value})


@alone
def test_numbers_and_dtypes_of_other_libraries_are_values():
    np = pytest.importorskip("numpy", reason="needs the package numpy")
    engine = deepspeed_engine(gradient_clipping=np.float32(0.5), gradient_accumulation_steps=np.int64(2),
                              zero_allow_untested_optimizer=np.bool_(True), bf16={"enabled": True},
                              data_types={"grad_accum_dtype": torch.float32}, zero_optimization={"stage": 1},
                              optimizer={"type": "Adam", "params": {"betas": (0.5, np.float64(0.25))}})
    assert (engine.gradient_clipping(), engine.gradient_accumulation_steps()) == (0.5, 2)
    assert engine.zero_allow_untested_optimizer() is True
    assert engine.basic_optimizer.param_groups[0]["betas"] == (0.5, 0.25)
    engine.close()


@alone
def test_defaults_are_those_of_the_document():
    engine = deepspeed_engine(optimizer={"type": "Adagrad"}, zero_optimization={"stage": 1})
    assert engine.get_lr() == [0.01]
    zero = engine._config.zero_config
    assert zero.overlap_comm is True and engine.zero_overlap_comm() is True and engine.zero_grad_hooks() is True
    assert (zero.offload_optimizer, zero.sub_group_size) == (None, 10**9)
    assert engine._config.bfloat16_config.check_grad_overflow is True  # as docs/config.md has it
    engine.close()


@BOTH
@alone
def test_the_batch_is_told_of_when_it_is_missing_and_one_when_nobody_filled_it_in(door, caplog):
    assert "the batch size is missing" in error_of(door, {"gradient_accumulation_steps": 2})
    auto = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}
    with caplog.at_level(logging.WARNING, logger="capstan"):
        engine = DOORS[door](auto)
    assert engine.core_config.value("train_batch_size") == 1
    assert any("only the Trainer and Accelerate fill in" in line for line in caplog.messages)
    engine.close()


# Sections that would do nothing

@BOTH
@pytest.mark.parametrize("more, text", [
    ({"sparse_attention": {"mode": "fixed"}}, "sparse attention: not available yet"),
    ({"zero_optimization": {"stage": 2, "zenflow": {}}}, "ZenFlow: not available yet"),
    ({"capstan": {"recompute": True}}, "gradient_checkpointing_enable()"),
    ({"gradient_allreduce_op": "sum", "zero_optimization": {"stage": 3}}, "not supported with ZeRO stage 3"),
    ({"optimizer": {"type": "OneBitAdam"}}, "not available yet"),
    ({"optimizer": {"type": "Adam", "params": {"max_grad_norm": 1.0}}}, "gradient_clipping"),
])
@alone
def test_what_has_no_effect_is_refused_by_name(door, more, text):
    assert text in error_of(door, config_of(**more))


@alone
def test_what_only_another_door_acts_on_is_told(caplog):
    with caplog.at_level(logging.WARNING, logger="capstan"):
        deepspeed_engine(activation_checkpointing={"number_checkpoints": 4}).close()
        DOORS["capstan"](config_of(capstan={"seed": 5})).close()
        told = [line for line in caplog.messages if "has no effect here" in line]
    assert len(told) == 2 and "number_checkpoints" in told[0] and '"seed"' in told[1]
    assert "torch autocast" in error_of("capstan", config_of(torch_autocast={"enabled": True}))


@alone
def test_a_configuration_that_nobody_trains_with_may_name_what_is_not_there(monkeypatch):
    config = config_of(elasticity={"enabled": True}, eigenvalue={"model_name": "bert"})
    warned = []
    monkeypatch.setattr(deepspeed.utils.logging.logger, "warning", lambda text, *args: warned.append(text % args))
    read = deepspeed.DeepSpeedConfig(config)
    assert read.elasticity_enabled and read.train_batch_size == 2
    assert [text for text in warned if "elastic training" in text] and [text for text in warned if "model_name" in text]
    told = error_of("deepspeed", config)
    assert "elastic training" in told and "model_name" in told
    with pytest.raises(deepspeed.DeepSpeedConfigError, match="elastic"):
        deepspeed.initialize(model=make_model(), config=read)


# Classes of torch by name

@alone
def test_classes_of_torch_are_made_by_name_and_their_mistakes_told():
    engine = deepspeed_engine(optimizer={"type": "NAdam", "params": {"lr": "1e-4", "betas": [0.5, 0.75]}},
                              scheduler={"type": "StepLR", "params": {"step_size": 3}})
    assert type(engine.basic_optimizer) is torch.optim.NAdam and engine.get_lr() == [1e-4]
    assert engine.basic_optimizer.param_groups[0]["betas"] == (0.5, 0.75)
    assert type(engine.lr_scheduler) is torch.optim.lr_scheduler.StepLR and engine.lr_scheduler.step_size == 3
    engine.close()
    told = error_of("deepspeed", config_of(optimizer={"type": "NAdam", "params": {"momentum_dcay": 1}},
                                           scheduler={"type": "StepLR", "params": {"gama": 0.1}}))
    assert "3 problems" in told and 'did you mean "momentum_decay"?' in told and '"step_size" is missing' in told
    told = error_of("deepspeed", config_of(optimizer={"type": "Banana"}))
    assert '"AdamW"' in told and "a class of torch.optim" in told and "OneBitAdam" not in told


@alone
def test_a_parameter_that_the_chosen_class_does_not_take_is_an_error():
    told = error_of("deepspeed", config_of(optimizer={"type": "Adam", "params": {"torch_adam": True,
                                                                                 "bias_correction": False}}))
    assert "always corrects its bias" in told


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD", "Lion", "Adagrad", "Lamb"])
@pytest.mark.parametrize("offload", [False, True])
@alone
def test_every_optimizer_of_the_document_starts_with_its_defaults(kind, offload):
    zero = {"stage": 1, "offload_optimizer": {"device": "cpu" if offload else "none"}}
    engine = deepspeed_engine(optimizer={"type": kind}, zero_optimization=zero)
    group = engine.basic_optimizer.param_groups[0]
    for key, value in engine.core_config.section("optimizer.params").items():
        if key in group and value is not None:
            assert group[key] == (tuple(value) if isinstance(value, list) else value), key
    engine.close()


# Activation checkpointing and zero.Init

class Recomputed(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.scale = nn.Sequential(nn.Linear(6, 6), nn.Tanh()), 2.0

    def forward(self, x):
        return deepspeed.checkpointing.checkpoint(lambda value, factor: self.block(value) * factor, self.block(x),
                                                  factor=torch.tensor(self.scale))


@alone
def test_the_section_of_activation_checkpointing_acts_on_the_packages_checkpoint(monkeypatch):
    from deepspeed.accelerator import get_accelerator
    moved, waits = [], []
    plain = torch.autograd.graph.save_on_cpu

    def noted(*args, **kwargs):
        moved.append(1)
        return plain(*args, **kwargs)

    monkeypatch.setattr(torch.autograd.graph, "save_on_cpu", noted)
    monkeypatch.setattr(type(get_accelerator()), "synchronize", lambda self, device=None: waits.append(1))
    results = []
    for section in ({}, {"cpu_checkpointing": True, "synchronize_checkpoint_boundary": True}):
        torch.manual_seed(0)
        engine = deepspeed.initialize(model=Recomputed(), config=config_of(
            optimizer={"type": "SGD"}, activation_checkpointing=section))[0]
        before = len(moved), len(waits)
        loss = engine(torch.ones(2, 6)).square().sum()
        engine.backward(loss)
        engine.step()
        assert (len(moved) > before[0], len(waits) > before[1]) == (bool(section), bool(section))
        results.append([p.detach().clone() for p in engine.module.parameters()])
        engine.close()
    assert all(torch.equal(a, b) for a, b in zip(*results))


def init_arguments():
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    offload = {"train_micro_batch_size_per_gpu": 1,
               "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}
    for argument in ("zero_quantized_weights", "zero_quantized_nontrainable_weights", "param_swapper"):
        with pytest.raises(NotImplementedError, match=argument):
            deepspeed.zero.Init(config_dict_or_path=config, **{argument: True})
    for arguments in ({"remote_device": "cpu"}, {"remote_device": "nvme"}, {"pin_memory": True}):
        with pytest.raises(capstan.ConfigError, match="offload_param"):
            deepspeed.zero.Init(config_dict_or_path=config, **arguments)
    with pytest.raises(capstan.ConfigError, match="did you mean"):
        deepspeed.zero.Init(config_dict_or_path={"zero_optimizaton": {"stage": 3}})
    with deepspeed.zero.Init(config_dict_or_path=offload, remote_device="cpu", pin_memory=True):
        nn.Linear(3, 3)
    config["zero_optimization"]["override_module_apply"] = False
    config["bf16"] = {"enabled": "true"}
    seen = []
    with deepspeed.zero.Init(config_dict_or_path=config):
        nn.Sequential(nn.Linear(3, 5)).apply(lambda m: seen.extend(tuple(p.shape) for p in m.parameters(recurse=False)))
    assert seen == [(5, 3), (5,)]  # an initialiser sees whole parameters whatever that key says


def test_arguments_of_init_act_or_are_refused():
    ranks.run(1, init_arguments)

"""The sections tensorboard, csv_monitor, wandb and comet, and the key capstan.metrics, in the Python packages."""

import csv
import json
import logging
import os
import shutil
import sys
import types

import pytest
import ranks
import torch
from torch import nn

deepspeed = pytest.importorskip("deepspeed", reason="needs the package deepspeed")
capstan = pytest.importorskip("capstan")

BATCH = 3


def config_of(**more):
    return {"train_micro_batch_size_per_gpu": BATCH, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
            "gradient_clipping": 1.0, "zero_optimization": {"stage": 1}, **more}


def make(**more):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config_of(**more))[0]


def train(engine, steps, scale=1.0):
    """The losses of this rank's micro-batches."""
    losses = []
    for step in range(steps):
        loss = engine(torch.full((BATCH, 4), scale + step + engine.global_rank)).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def rows(folder, figure):
    """Header and [(samples, value)] of a CSV file."""
    with open(os.path.join(folder, f"Train_Samples_{figure}.csv"), newline="") as file:
        header, *lines = csv.reader(file)
    return header, [(int(samples), float(value)) for samples, value in lines]


def train_with_csv(folder):
    engine = make(csv_monitor={"enabled": True, "output_path": folder, "job_name": "run"}, wall_clock_breakdown=True,
                  gradient_accumulation_steps=2)
    return train(engine, 6), engine.monitor.enabled, engine.monitor.csv_monitor is not None


def test_csv_has_upstreams_layout_names_and_axis_and_the_mean_loss(tmp_path):
    (first, *told), (second, *elsewhere) = ranks.run(2, train_with_csv, str(tmp_path))
    assert told == [True, True] and elsewhere == [True, False]
    folder = tmp_path / "run"
    header, losses = rows(folder, "train_loss")
    assert header == ["step", "train_loss"]
    assert [samples for samples, _ in losses] == [12, 24, 36]  # 3 a rank, 2 ranks, 2 micro-batches
    means = [(first[i] + first[i + 1] + second[i] + second[i + 1]) / 4 for i in (0, 2, 4)]
    assert [loss for _, loss in losses] == pytest.approx(means, rel=1e-6)
    assert [value for _, value in rows(folder, "lr")[1]] == [0.01] * 3
    assert all(value > 0 for _, value in rows(folder, "grad_norm")[1])
    assert [value for _, value in rows(folder, "skipped_steps")[1]] == [0, 0, 0]
    for figure in ("forward", "backward", "backward_inner", "backward_allreduce", "step"):
        assert len(rows(folder, f"elapsed_time_ms_{figure}")[1]) == 3
    assert not (folder / "Train_Samples_loss_scale.csv").exists()  # fp16 only


def train_fp16(folder):
    engine = make(csv_monitor={"enabled": True, "output_path": folder}, fp16={"enabled": True, "initial_scale_power": 4})
    x = torch.ones(BATCH, 4, dtype=torch.float16)
    for factor in (1.0, float("inf"), 1.0):
        engine.backward(engine(x).float().square().mean() * factor)
        engine.step()


def test_loss_scale_and_skipped_steps_with_fp16(tmp_path):
    ranks.run(1, train_fp16, str(tmp_path))
    folder = tmp_path / "DeepSpeedJobName"
    assert [value for _, value in rows(folder, "loss_scale")[1]] == [16.0, 16.0, 16.0]
    assert [value for _, value in rows(folder, "skipped_steps")[1]] == [0, 1, 1]
    assert len(rows(folder, "train_loss")[1]) == 2  # a loss that is not finite is left out


def train_with_metrics(path):
    engine = make(capstan={"metrics": path}, gradient_accumulation_steps=2, comet={"enabled": False, "api_key": "secret-word"})
    losses = train(engine, 4)
    engine.tell_validation_loss(torch.tensor(0.5))
    return losses


def test_the_core_writes_metrics_for_python_programs(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text(json.dumps({"step": 7, "loss": 1.0}) + "\n")  # of a run before
    first, second = ranks.run(2, train_with_metrics, str(path))
    _, about, *steps, validation = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in steps] == [1, 2] and [line["samples"] for line in steps] == [12, 24]
    means = [(first[i] + first[i + 1] + second[i] + second[i + 1]) / 4 for i in (0, 2)]
    assert [line["loss"] for line in steps] == pytest.approx(means, rel=1e-6)
    assert steps[1]["samples_per_s"] > 0 and steps[1]["held_bytes"]["optimizer"] > 0
    assert validation == {"step": 2, "validation_loss": 0.5}
    assert "secret-word" not in path.read_text()
    values = {key: (value, given) for key, value, _, given in about["run"]["config"]}
    assert values["optimizer.params.lr"] == ("0.01", True) and values["zero_optimization.stage"] == ("1", True)
    assert about["run"]["facts"]["ranks"] == "2" and about["run"]["environment"]["cores"]


def train_capstan_alone(folder):
    model = nn.Linear(4, 1)
    engine = capstan.Engine(model, {**config_of(), "csv_monitor": {"enabled": True, "output_path": folder, "job_name": "x"}})
    for _ in range(2):
        engine.backward(engine(torch.ones(BATCH, 4)).square().mean())
        engine.step()


def test_the_package_capstan_has_them_too(tmp_path):
    ranks.run(1, train_capstan_alone, str(tmp_path))
    assert len(rows(tmp_path / "x", "train_loss")[1]) == 2


def train_with_torch_optimizer(path):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.25)
    config = {key: value for key, value in config_of(capstan={"metrics": path}).items() if key != "optimizer"}
    engine = capstan.Engine(model, config, optimizer=optimizer)
    for rate in (0.25, 0.125):
        optimizer.param_groups[0]["lr"] = rate
        engine.backward(engine(torch.ones(BATCH, 4)).square().mean())
        engine.step()


def test_the_rate_of_an_optimizer_object_is_told(tmp_path):
    ranks.run(1, train_with_torch_optimizer, str(tmp_path / "m.jsonl"))
    lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert [line["lr"] for line in lines if "step" in line] == [0.25, 0.125]


class Lines(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def train_while_its_folder_goes(folder):
    from deepspeed.utils.logging import logger
    heard = Lines()
    logger.addHandler(heard)
    engine = make(csv_monitor={"enabled": True, "output_path": folder}, capstan={"metrics": folder + "/m.jsonl"})
    train(engine, 2)
    if engine.global_rank == 0:
        shutil.rmtree(folder)
    torch.distributed.barrier()
    train(engine, 3)
    return engine.global_steps, [line for line in heard.lines if "is left out" in line]


def test_training_goes_on_when_a_monitors_folder_is_deleted(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    (steps, warnings), (other_steps, other_warnings) = ranks.run(2, train_while_its_folder_goes, str(folder))
    assert steps == other_steps == 5 and other_warnings == []
    assert len(warnings) == 2 and any("the metrics file" in line for line in warnings), warnings


def error_of(config):
    try:
        make(**config)
    except capstan.errors.Error as error:
        return type(error).__name__, error.what, error.where, error.fix
    return None


def without(package, config):
    """On rank 0 only: whether the other one has it does not matter."""
    if torch.distributed.get_rank() == 0:
        sys.modules[package] = None
    return error_of(config)


@pytest.mark.parametrize("package, section", [("tensorboard", "tensorboard"), ("wandb", "wandb"), ("comet_ml", "comet")])
def test_a_missing_package_is_an_error_on_every_rank_before_training(package, section):
    for error in ranks.run(2, without, package, {section: {"enabled": True}}):
        assert error is not None and error[0] == "ConfigError"
        assert package in error[1] and error[2] == f"{section}.enabled" and "pip install" in error[3]


def test_a_folder_that_cannot_be_made_is_an_error_on_every_rank(tmp_path):
    (tmp_path / "file").write_text("")
    for config in ({"csv_monitor": {"enabled": True, "output_path": str(tmp_path / "file" / "x")}},
                   {"capstan": {"metrics": str(tmp_path / "none" / "m.jsonl")}}):
        for error in ranks.run(2, error_of, config):
            assert error is not None and error[0] == "IoError" and str(tmp_path) in error[2], error


def comet_calls():
    calls, module = [], types.ModuleType("comet_ml")
    module.__version__ = "3.50.0"

    class Experiment:
        def set_name(self, name):
            calls.append(("name", name))

        def __getattr__(self, name):
            return lambda **what: calls.append((name, what))

    module.start = lambda **how: calls.append(("start", how)) or Experiment()
    sys.modules["comet_ml"] = module
    engine = make(comet={"enabled": True, "samples_log_interval": 6, "project": "p", "experiment_name": "n"})
    train(engine, 4)
    return calls


def test_comet_is_started_named_and_told_every_so_many_samples():
    """Its client is the network's: this is a stand-in with the same calls."""
    start, name, *told = ranks.run(1, comet_calls)[0]
    assert start[0] == "start" and start[1]["project"] == "p" and start[1]["online"] is None and name == ("name", "n")
    losses = [what["step"] for call, what in told if what["name"] == "Train/Samples/train_loss"]
    assert losses == [3, 9] and {call for call, _ in told} == {"__internal_api__log_metric__"}


def train_with_tensorboard(folder):
    engine = make(tensorboard={"enabled": True, "output_path": folder, "job_name": "run"})
    losses = train(engine, 3)
    engine.monitor.write_events([("Mine/figure", 7.0, 9)])
    return losses


def test_tensorboard_reads_what_it_was_told(tmp_path):
    pytest.importorskip("tensorboard", reason="needs the package tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    losses, = ranks.run(1, train_with_tensorboard, str(tmp_path))
    found = EventAccumulator(str(tmp_path / "run")).Reload()
    assert [(event.step, event.value) for event in found.Scalars("Train/Samples/train_loss")] == [
        (3, pytest.approx(losses[0])), (6, pytest.approx(losses[1])), (9, pytest.approx(losses[2]))]
    assert [event.value for event in found.Scalars("Mine/figure")] == [7.0]


def train_with_wandb(folder):
    os.environ.update(WANDB_MODE="offline", WANDB_DIR=folder, WANDB_SILENT="true")
    engine = make(wandb={"enabled": True, "project": "test", "group": "g"})
    losses = train(engine, 3)
    import wandb
    run = wandb.run
    told = run.summary["Train/Samples/train_loss"], run.project, run.group
    wandb.finish()
    return losses[-2], told  # wandb keeps a step open until the next one begins


def test_wandb_offline_has_the_figures(tmp_path):
    pytest.importorskip("wandb", reason="needs the package wandb")
    (loss, told), = ranks.run(1, train_with_wandb, str(tmp_path))
    assert told == (pytest.approx(loss), "test", "g")
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


def test_the_classes_are_those_of_deepspeed(tmp_path):
    from deepspeed.monitor.comet import CometMonitor
    from deepspeed.monitor.config import DeepSpeedMonitorConfig, get_monitor_config
    from deepspeed.monitor.csv_monitor import csvMonitor
    from deepspeed.monitor.monitor import Monitor, MonitorMaster
    from deepspeed.monitor.tensorboard import TensorBoardMonitor
    from deepspeed.monitor.wandb import WandbMonitor
    config = get_monitor_config({"csv_monitor": {"enabled": True, "output_path": str(tmp_path), "job_name": "j"}})
    assert config.enabled and not DeepSpeedMonitorConfig().enabled
    master = MonitorMaster(config)
    master.write_events([("a/b c", 1.5, 2)])
    assert (tmp_path / "j" / "a_b_c.csv").read_text() == "step,b c\n2,1.5\n"
    for kind in (csvMonitor, TensorBoardMonitor, WandbMonitor, CometMonitor):
        assert issubclass(kind, Monitor) and not kind(getattr(DeepSpeedMonitorConfig(), {
            csvMonitor: "csv_monitor", TensorBoardMonitor: "tensorboard", WandbMonitor: "wandb", CometMonitor: "comet"}[kind])).enabled

"""The sections tensorboard, wandb, csv_monitor and comet as pydantic models."""

from typing import Optional

from pydantic import model_validator

from capstan import _C
from deepspeed.runtime.config_utils import DeepSpeedConfigModel

_TENSORBOARD, _WANDB, _CSV, _COMET = map(_C.config_defaults, ("tensorboard", "wandb", "csv_monitor", "comet"))


class TensorBoardConfig(DeepSpeedConfigModel):
    enabled: bool = _TENSORBOARD["enabled"]
    output_path: str = _TENSORBOARD["output_path"] or ""
    job_name: str = _TENSORBOARD["job_name"]


class WandbConfig(DeepSpeedConfigModel):
    enabled: bool = _WANDB["enabled"]
    group: Optional[str] = _WANDB["group"]
    team: Optional[str] = _WANDB["team"]
    project: str = _WANDB["project"]


class CSVConfig(DeepSpeedConfigModel):
    enabled: bool = _CSV["enabled"]
    output_path: str = _CSV["output_path"] or ""
    job_name: str = _CSV["job_name"]


class CometConfig(DeepSpeedConfigModel):
    enabled: bool = _COMET["enabled"]
    samples_log_interval: int = _COMET["samples_log_interval"]
    project: Optional[str] = _COMET["project"]
    workspace: Optional[str] = _COMET["workspace"]
    api_key: Optional[str] = _COMET["api_key"]
    experiment_name: Optional[str] = _COMET["experiment_name"]
    experiment_key: Optional[str] = _COMET["experiment_key"]
    online: Optional[bool] = _COMET["online"]
    mode: Optional[str] = _COMET["mode"]


class DeepSpeedMonitorConfig(DeepSpeedConfigModel):
    tensorboard: TensorBoardConfig = {}
    comet: CometConfig = {}
    wandb: WandbConfig = {}
    csv_monitor: CSVConfig = {}

    @model_validator(mode="after")
    def _note_enabled(self):
        sections = (self.tensorboard, self.wandb, self.csv_monitor, self.comet)
        self.__dict__["enabled"] = any(section.enabled for section in sections)
        return self


def config_of(view):
    given = {name: view.section(name) for name in ("tensorboard", "wandb", "csv_monitor", "comet")}
    return DeepSpeedMonitorConfig(**{name: {key: value for key, value in section.items() if value is not None}
                                     for name, section in given.items()})


def get_monitor_config(param_dict):
    from deepspeed.runtime.config import view_of_section
    return config_of(view_of_section(param_dict, "tensorboard", "wandb", "csv_monitor", "comet"))

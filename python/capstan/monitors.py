"""Monitors whose clients are packages of Python. What they are told, and when, the core decides."""

import importlib
import os

import torch.distributed as dist

from capstan import _C
from capstan.errors import ConfigError, IoError


def is_first_rank():
    return not dist.is_initialized() or dist.get_rank() == 0


def need(package, section, least=None):
    """The package, or an error that says how to get it."""
    try:
        found = importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(f"the package {package} cannot be imported: {error}", f"{section}.enabled",
                          f'pip install "{package}{f">={least}" if least else ""}", or set {section}.enabled to false') from error
    own = getattr(found, "__version__", "")
    if least and [int(part) for part in own.split(".")[:2] if part.isdigit()] < [int(part) for part in least.split(".")[:2]]:
        raise ConfigError(f"{package} {own} is too old", f"{section}.enabled", f'pip install "{package}>={least}"')
    return found


class TensorBoard:
    """Event files in output_path/job_name."""

    def __init__(self, settings):
        self.enabled, self.output_path, self.job_name = settings.enabled, settings.output_path, settings.job_name
        self.summary_writer = None
        if self.enabled and is_first_rank():
            need("tensorboard", "tensorboard")
            self.get_summary_writer()

    def get_summary_writer(self, base=None):
        if self.summary_writer is None and self.enabled and is_first_rank():
            from torch.utils.tensorboard import SummaryWriter
            self.summary_writer = _make(lambda: SummaryWriter(log_dir=os.path.join(base or self.output_path or "", self.job_name)),
                                        "tensorboard.output_path")
        return self.summary_writer

    def write_events(self, event_list, flush=True):
        if self.summary_writer is None:
            return
        for name, value, samples in event_list:
            self.summary_writer.add_scalar(name, value, samples)
        if flush:
            self.flush()

    def flush(self):
        if self.summary_writer is not None:
            self.summary_writer.flush()


class Csv:
    """A file per figure in output_path/job_name, written by the core."""

    def __init__(self, settings):
        self.enabled, self.output_path, self.job_name = settings.enabled, settings.output_path, settings.job_name
        self.log_dir = self._files = None
        if self.enabled and is_first_rank():
            self.log_dir = os.path.join(self.output_path or "", self.job_name)
            self._files = _make(lambda: _C.CsvFiles(self.log_dir), "csv_monitor.output_path")

    def write_events(self, event_list):
        if self._files is not None:
            self._files.write([(name, float(value), int(samples)) for name, value, samples in event_list])


class Wandb:
    """Weights & Biases; WANDB_MODE=offline keeps everything on this machine."""

    def __init__(self, settings):
        self.enabled, self.group, self.team, self.project = settings.enabled, settings.group, settings.team, settings.project
        self._client = None
        if self.enabled and is_first_rank():
            self._client = need("wandb", "wandb")
            self._client.init(project=self.project, group=self.group, entity=self.team)

    def log(self, data, step=None, commit=None):
        return self._client.log(data, step=step, commit=commit) if self._client is not None else None

    def write_events(self, event_list):
        for name, value, samples in event_list:
            self.log({name: value}, step=samples)


class Comet:
    """Comet; of each figure a point every `samples_log_interval` samples."""

    def __init__(self, settings):
        self.enabled, self._samples_log_interval = settings.enabled, settings.samples_log_interval
        self._experiment, self._last = None, {}
        if self.enabled and is_first_rank():
            comet_ml = need("comet_ml", "comet", least="3.41.0")
            self._experiment = comet_ml.start(api_key=settings.api_key, project=settings.project, workspace=settings.workspace,
                                              experiment_key=settings.experiment_key, mode=settings.mode, online=settings.online)
            if settings.experiment_name is not None:
                self._experiment.set_name(settings.experiment_name)

    @property
    def experiment(self):
        return self._experiment

    @property
    def samples_log_interval(self):
        return self._samples_log_interval

    def write_events(self, event_list):
        if self._experiment is None:
            return
        for name, value, samples in event_list:
            if name not in self._last or samples - self._last[name] >= self._samples_log_interval:
                self._last[name] = samples
                # The name of comet_ml for integrations; written in a class, it must not be mangled.
                getattr(self._experiment, "__internal_api__log_metric__")(name=name, value=value, step=samples)


KINDS = {"tensorboard": TensorBoard, "wandb": Wandb, "csv_monitor": Csv, "comet": Comet}


class Settings:
    """One section of a configuration."""

    def __init__(self, values):
        self.__dict__.update(values)


def _make(make, where):
    try:
        return make()
    except IoError:
        raise
    except OSError as error:
        raise IoError(f"the monitor cannot begin: {error}", where, "name a folder that can be made and written to") from error


def settings_of(config):
    """The sections of a configuration; `enabled`: whether any of them is."""
    sections = {name: Settings(config.section(name)) for name in KINDS}
    return Settings({**sections, "enabled": any(section.enabled for section in sections.values())})


def any_of(config):
    """Whether the figures of a step go anywhere."""
    return bool(config.value("capstan.metrics")) or settings_of(config).enabled


def writers(config):
    """Functions that take events (name, value, samples), one per monitor; None where this rank writes nothing at all."""
    if not is_first_rank():
        return None
    return [kind(Settings(config.section(section))).write_events for section, kind in KINDS.items()
            if config.value(f"{section}.enabled")]

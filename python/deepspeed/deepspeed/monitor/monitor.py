"""MonitorMaster: every monitor of a configuration."""

from abc import ABC, abstractmethod

from capstan.monitors import is_first_rank


class Monitor(ABC):

    @abstractmethod
    def __init__(self, monitor_config):
        self.monitor_config = monitor_config

    @abstractmethod
    def write_events(self, event_list):
        """`event_list`: (name, value, samples)."""


from deepspeed.monitor.comet import CometMonitor  # noqa: E402
from deepspeed.monitor.csv_monitor import csvMonitor  # noqa: E402
from deepspeed.monitor.tensorboard import TensorBoardMonitor  # noqa: E402
from deepspeed.monitor.wandb import WandbMonitor  # noqa: E402


class MonitorMaster(Monitor):
    """On rank 0 those that are enabled; elsewhere, and of the others, None."""

    def __init__(self, monitor_config):
        super().__init__(monitor_config)
        self.enabled = monitor_config.enabled

        def made(kind, config):
            return kind(config) if config.enabled and is_first_rank() else None

        self.tb_monitor = made(TensorBoardMonitor, monitor_config.tensorboard)
        self.wandb_monitor = made(WandbMonitor, monitor_config.wandb)
        self.csv_monitor = made(csvMonitor, monitor_config.csv_monitor)
        self.comet_monitor = made(CometMonitor, monitor_config.comet)

    def writers(self):
        own = (self.tb_monitor, self.wandb_monitor, self.csv_monitor, self.comet_monitor)
        return [monitor.write_events for monitor in own if monitor is not None]

    def write_events(self, event_list):
        for write in self.writers():
            write(event_list)

"""WandbMonitor."""

from capstan import monitors
from deepspeed.monitor.monitor import Monitor


class WandbMonitor(monitors.Wandb, Monitor):

    def __init__(self, monitor_config):
        Monitor.__init__(self, monitor_config)
        monitors.Wandb.__init__(self, monitor_config)

"""CometMonitor."""

from capstan import monitors
from deepspeed.monitor.monitor import Monitor


class CometMonitor(monitors.Comet, Monitor):

    def __init__(self, monitor_config):
        Monitor.__init__(self, monitor_config)
        monitors.Comet.__init__(self, monitor_config)

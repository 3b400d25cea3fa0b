"""csvMonitor."""

from capstan import monitors
from deepspeed.monitor.monitor import Monitor


class csvMonitor(monitors.Csv, Monitor):

    def __init__(self, monitor_config):
        Monitor.__init__(self, monitor_config)
        monitors.Csv.__init__(self, monitor_config)

"""TensorBoardMonitor."""

from capstan import monitors
from deepspeed.monitor.monitor import Monitor


class TensorBoardMonitor(monitors.TensorBoard, Monitor):

    def __init__(self, monitor_config):
        Monitor.__init__(self, monitor_config)
        monitors.TensorBoard.__init__(self, monitor_config)

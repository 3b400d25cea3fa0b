"""Wall-clock timers by name."""

import math
import time

FORWARD_GLOBAL_TIMER, BACKWARD_GLOBAL_TIMER, STEP_GLOBAL_TIMER = "fwd", "bwd", "step"
FORWARD_MICRO_TIMER, BACKWARD_MICRO_TIMER, STEP_MICRO_TIMER = "fwd_microstep", "bwd_microstep", "step_microstep"


def trim_mean(data, trim_percent):
    """The mean without the lowest and the highest share of values; the list stays as it is."""
    assert 0.0 <= trim_percent <= 1.0
    if not data:
        return 0
    ordered = sorted(data)
    cut = int(len(ordered) * trim_percent)
    kept = ordered[cut:len(ordered) - cut] or ordered
    return sum(kept) / len(kept)


class SynchronizedWallClockTimer:

    class Timer:

        def __init__(self, name):
            self.name_, self.started_, self.elapsed_records = name, False, []

        def start(self):
            assert not self.started_, f"{self.name_} timer has already been started"
            self._begin, self.started_ = time.time(), True

        def stop(self, reset=False, record=True):
            assert self.started_, "timer is not started"
            self.elapsed_records.append((time.time() - self._begin) * 1000)
            self.started_ = False

        def reset(self):
            self.started_, self.elapsed_records = False, []

        def elapsed(self, reset=True):
            """Milliseconds since the last reset."""
            running = self.started_
            if running:
                self.stop()
            total = sum(self.elapsed_records)
            if reset:
                self.reset()
            if running:
                self.start()
            return total

        def mean(self):
            return trim_mean(self.elapsed_records, 0.1)

    def __init__(self):
        self.timers = {}

    def __call__(self, name):
        return self.timers.setdefault(name, self.Timer(name))

    def has_timer(self, name):
        return name in self.timers

    def get_timers(self):
        return self.timers

    def log(self, names, normalizer=1.0, reset=True, memory_breakdown=False, ranks=None):
        from deepspeed.utils.logging import log_dist
        text = " | ".join(f"{name}: {self.timers[name].elapsed(reset) / normalizer:.2f}" for name in names
                          if name in self.timers)
        log_dist(f"time (ms) | {text}", ranks=ranks or [0])


class NoopTimer:

    class Timer:

        def start(self):
            pass

        stop = reset = elapsed = start

        def mean(self):
            return 0

    def __call__(self, name):
        return self.Timer()

    def has_timer(self, name):
        return True

    def log(self, *args, **kwargs):
        pass


def is_due(step, every):
    """Whether a line that comes every so many steps comes at this one; None, 0 or inf: never."""
    return bool(every) and every != math.inf and step % math.ceil(every) == 0


class ThroughputTimer:
    """Samples per second over whole steps, the first `start_step` left out: they warm up."""

    def __init__(self, config, batch_size, start_step=2, steps_per_output=None, monitor_memory=False, logging_fn=None,
                 measured=None):
        """`measured`: a weak reference to a function that knows the samples per second of the device's time, or None."""
        from deepspeed.utils.logging import logger
        self.config, self.batch_size, self.start_step = config, max(1, batch_size or 1), start_step
        self.measured = measured
        self.steps_per_output, self.monitor_memory = steps_per_output, monitor_memory
        self.logging = logging_fn or logger.info
        self.started = self.initialized = False
        self.start_time = self.end_time = 0
        self.epoch_count = self.micro_step_count = self.global_step_count = 0
        self.step_elapsed_time = self.total_elapsed_time = 0

    def update_epoch_count(self):
        self.epoch_count += 1
        self.micro_step_count = 0

    def _warm(self):
        return self.global_step_count >= self.start_step

    def start(self):
        self.initialized = self.started = True
        if self._warm():
            self.start_time = time.time()

    def stop(self, global_step=False, report_speed=True):
        """Ends a micro-batch, and with global_step a step."""
        if not self.started:
            return
        self.started = False
        if self._warm() and self.start_time > 0:
            self.end_time = time.time()
            self.step_elapsed_time += self.end_time - self.start_time
            self.total_elapsed_time += self.end_time - self.start_time
        self.micro_step_count += 1
        if not global_step:
            return
        self.global_step_count += 1
        if report_speed and self.total_elapsed_time > 0 and is_due(self.global_step_count, self.steps_per_output):
            self.logging(f"step={self.global_step_count}, samples/s={self.avg_samples_per_sec():.2f} on average, "
                         f"{self.batch_size / self.step_elapsed_time:.2f} in this step")
        self.step_elapsed_time = 0

    def avg_samples_per_sec(self):
        ask = self.measured and self.measured()
        measured = ask and ask()
        if measured is not None:
            return measured
        if self.global_step_count <= self.start_step or self.total_elapsed_time == 0:
            return float("-inf")
        return self.batch_size * (self.global_step_count - self.start_step) / self.total_elapsed_time

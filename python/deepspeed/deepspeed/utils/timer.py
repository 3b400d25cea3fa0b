"""Wall-clock timers by name."""

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

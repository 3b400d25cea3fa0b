"""nvme_kills.py N [SEED]: kills a training run with all state on disk at random moments, N times.

Each run goes on from what the one before it left. Every loss must equal that of a run which nobody killed, and the
files of the killed run must be gone when the next one trains.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from nvme_run import TIMEOUT, NvmeRun

STEPS = 20


def kill_after(run, saves, delay):
    """Starts a run, lets it train for `delay` seconds and kills it; returns what was wrong, else ''."""
    left = run.swap_files()
    process = subprocess.Popen(run.command(saves), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        began = time.monotonic()
        while process.poll() is None and not run.losses():
            if time.monotonic() - began > TIMEOUT:
                return "no step was made: it hangs"
            if delay < 0 and time.monotonic() - began > -delay:
                break  # killed while it starts
            time.sleep(0.02)
        still = set(left) & set(run.swap_files())
        if run.losses() and still:
            return f"files of the killed run are still there: {sorted(still)}"
        time.sleep(max(0.0, delay))
        if process.poll() not in (None, 0):
            return f"it failed by itself: {process.stderr.read()}"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    return ""


def wrong_loss(run, reference):
    for step, loss in run.losses().items():
        if loss != reference[step]:
            return f"step {step} has loss {loss}, without kills {reference[step]}"
    return ""


def kill_runs(count, seed):
    """The summary; raises AssertionError with seed and number of the first kill after which a promise did not hold."""
    moments = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = NvmeRun(folder, ranks=1, steps=STEPS)
        run.run(folder / "reference")
        reference = run.losses()
        assert len(reference) == STEPS
        # Around one run's own length, and some before the first step.
        length = STEPS * typical_step(folder)
        rounds, with_files, resumed = 0, 0, 0
        for kill in range(count):
            saves = folder / f"saved{rounds}"
            delay = moments.uniform(-3.0, 0.0) if kill % 5 == 4 else moments.uniform(0.0, length)
            problem = kill_after(run, saves, delay) or wrong_loss(run, reference)
            assert not problem, f"seed {seed}, kill {kill}: {problem}"
            with_files += bool(run.swap_files())
            resumed += bool(run.losses()) and min(run.losses()) > 1
            rounds += STEPS in run.losses()  # it reached its end: begin anew
        run.run(folder / "last")
        assert run.losses() == reference and run.swap_files() == [], f"seed {seed}: after all kills"
    return (f"{count} kills, {with_files} of them left files, {resumed} runs went on from a checkpoint: every loss as in "
            "the run without kills, no file left")


def typical_step(folder):
    """Seconds, from when the reference run wrote its checkpoints."""
    times = sorted(path.stat().st_mtime for path in (folder / "reference").glob("global_step*"))
    return max(0.005, (times[-1] - times[0]) / 2)


if __name__ == "__main__":
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int.from_bytes(os.urandom(4), "big")
    print(kill_runs(int(sys.argv[1]), seed))

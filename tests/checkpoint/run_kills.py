"""run_kills.py N [SEED]: kills two ranks that save in the background at random moments, N times.

Each run goes on from what the one before it left. A kill takes the launcher and both ranks at once, or one rank only: then
the job must end by itself. Afterwards every checkpoint must be whole, the newest at least as new as the last that was
reported as saved, and every loss equal to that of a run which nobody killed.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from process_tree import descendants  # noqa: E402

CAPSTAN = Path(os.environ["CAPSTAN_BIN"]) / "capstan"
TIMEOUT = 600  # seconds; a run takes a few on an idle machine
STEPS = 60
CONFIG = {"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True},
          "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "capstan": {"timeout_s": 60}}


def command(folder, metrics, *more):
    return [CAPSTAN, "train", "-n", "2", "--device", "cpu", "--model", "gpt2-tiny", "--tokens", "64", "--config", json.dumps(CONFIG),
            "--data", folder / "text.txt", "--max-steps", str(STEPS), "--dropout", "0.1", "--eval-every", "0", "--eval-batches",
            "1", "--sample-tokens", "0", "--log-every", "1", "--metrics", metrics, *more]


def losses(path):
    """By step; a line that a kill has cut does not count."""
    whole = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")] if path.exists() else []
    return {line["step"]: line["loss"] for line in map(json.loads, whole) if "loss" in line}


def is_rank(pid):
    try:
        return b"capstan-engine" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    except OSError:
        return False


def send_kill(pids):
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def kill_once(words, moments):
    """Runs until a random moment after a random step, then kills; returns (last step reported as saved, whole output)."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    after, one_rank = moments.randrange(0, 12), moments.random() < 0.5
    lines, steps, saved = [], 0, 0
    for line in process.stdout:
        lines.append(line)
        steps += line.startswith("step ")
        if found := re.match(r"saved \S+global_step(\d+) ", line):
            saved = int(found[1])
        if steps >= after:
            break
    time.sleep(moments.uniform(0.0, 0.15))
    family = descendants(process.pid)
    ranks = [pid for pid in family if is_rank(pid)]
    try:
        if one_rank and ranks and process.poll() is None:
            send_kill([moments.choice(ranks)])
            lines += process.stdout.readlines()  # until the job has ended by itself
            process.wait(TIMEOUT)
    finally:
        send_kill(descendants(process.pid))
        send_kill(family)
        process.wait()
    for line in lines:
        if found := re.match(r"saved \S+global_step(\d+) ", line):
            saved = max(saved, int(found[1]))
    return saved, "".join(lines)


def check_folder(run, saved):
    """What is wrong with the checkpoints, else ''; and the newest step."""
    if not any(run.glob("global_step*")):
        return ("", 0) if saved == 0 else (f"step {saved} was reported as saved, and nothing is there", 0)
    done = subprocess.run([CAPSTAN, "checkpoint", "verify", run], capture_output=True, text=True, timeout=TIMEOUT)
    steps = [int(step) for step in re.findall(r"global_step(\d+): whole", done.stdout)]
    if done.returncode != 0:
        return done.stdout + done.stderr, 0
    return ("" if max(steps) >= saved else f"step {saved} was reported as saved, the newest is {max(steps)}"), max(steps)


def kill_runs(count, seed):
    """The summary; raises AssertionError with seed and number of the first kill after which a promise did not hold."""
    moments = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "text.txt").write_text("".join(f"The number {i} comes before {i + 1}.\n" for i in range(2000)))
        subprocess.run(command(folder, folder / "whole.jsonl"), check=True, timeout=TIMEOUT, capture_output=True)
        whole = losses(folder / "whole.jsonl")
        assert list(whole) == list(range(1, STEPS + 1))
        rounds, in_a_save, resumed = 0, 0, 0
        for kill in range(count):
            run, metrics = folder / f"run{rounds}", folder / f"run{rounds}.jsonl"
            saved, output = kill_once(command(folder, metrics, "--save", run, "--save-every", "1", "--keep-last", "3", "--resume",
                                              run), moments)
            in_a_save += any(run.glob(".*.partial-*"))
            resumed += "the newest complete checkpoint" in output
            problem, newest = check_folder(run, saved)
            differ = [step for step, loss in losses(metrics).items() if loss != whole[step]]
            if differ:
                problem += f"the loss of step {differ[0]} differs from that of the run without kills"
            assert not problem, f"seed {seed}, kill {kill}: {problem}\n{output}"
            rounds += newest == STEPS  # it reached its end: begin anew
    return (f"{count} kills of two ranks, {in_a_save} of them in a save, {resumed} runs went on from a checkpoint: all "
            "checkpoints whole, every loss as in the run without kills")


if __name__ == "__main__":
    print(kill_runs(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)))

#!/usr/bin/env python3
"""Trains, saves in the background, is killed (SIGKILL) while a save is under way, and resumes: what a save costs.

    python3 benchmarks/checkpoint/kill_and_resume.py build/release/bin/capstan FOLDER --model gpt2-xl --tokens 1024 --batch 16

Two runs, none longer than it must be. The first saves every N steps and is killed a step after the last of --saves saves
began. The second resumes from the newest that was reported, saves nothing, and takes the steps again that the first had
taken since then: until its kill the first run was an uninterrupted one, so their losses must be equal to the last bit.
The time that training stood still is compared with a copy of as many bytes at the rate of a plain copy, measured before.
Exits with 1 where a loss differs or a save let it stand still for longer than 1.2 times that (below 1 GB of copies,
where a millisecond decides, it is only told). A checkpoint of gpt2-xl has 22 GB; two of them are in FOLDER at a time.
"""

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))
from process_tree import descendants  # noqa: E402

SAVED = re.compile(r"saved (\S+) \((.*?) in ([\d.]+) s, of which training stood still for ([\d.]+) s; (.*) copied\)")
STEP = re.compile(r"step (\d+)/")
UNITS = {unit: 1024**i for i, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))}
LIMIT = 1.2
LEAST_JUDGED = 1e9  # bytes


def command(args, run, steps):
    config = json.dumps({
        "train_micro_batch_size_per_gpu": args.batch, "bf16": {"enabled": True}, "gradient_clipping": 1.0,
        "zero_optimization": {"stage": args.stage, **({"offload_optimizer": {"device": "cpu"}} if args.offload else {})},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}})
    words = [args.capstan, "train", "-n", str(args.ranks), "--config", config, "--model", args.model, "--tokens", str(args.tokens),
             "--data", str(args.folder / "text.txt"), "--max-steps", str(steps), "--log-every", "1", "--eval-every", "0",
             "--eval-batches", "1", "--sample-tokens", "0", "--deterministic", "--dropout", str(args.dropout),
             "--resume", str(args.folder / "run"), "--metrics", str(args.folder / f"{run}.jsonl")]
    if run == "killed":
        words += ["--save", str(args.folder / "run"), "--save-every", str(args.save_every), "--keep-last", "1"]
    return words


def lines_of(process):
    for line in process.stdout:
        print(line, end="", flush=True)
        yield line


def start(words):
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def metrics(path):
    """By step; a line that was cut off by the kill does not count."""
    whole = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return {line["step"]: line for line in map(json.loads, whole) if "loss" in line}


def bytes_of(text):
    number, unit = text.split()
    return float(number) * UNITS[unit]


def copy_rate(args):
    """Bytes/s from where the states live to host memory."""
    folder = Path(args.capstan).resolve().parent
    program = next(folder / name for name in ("capstan-engine-cuda", "capstan-engine") if (folder / name).exists())
    env = os.environ | ({"CUDA_VISIBLE_DEVICES": ""} if args.offload else {})
    told = subprocess.run([program, "probe", "copy"], check=True, capture_output=True, text=True, env=env).stdout
    print("-- a plain copy:", told, end="", flush=True)
    return float(told.split()[0]) * 1e9


def kill_all(pid):
    """The launcher and its ranks at once: nobody has time to do anything in order."""
    for each in descendants(pid):
        os.kill(each, signal.SIGKILL)


def train_and_kill(args):
    """Kills the run a step after the last save began; returns the saves that were reported before."""
    process, saves = start(command(args, "killed", 10**6)), []
    for line in lines_of(process):
        if found := SAVED.search(line):
            saves.append({"tag": Path(found[1]).name, "bytes": bytes_of(found[2]), "seconds": float(found[3]),
                          "blocked": float(found[4]), "copied": bytes_of(found[5])})
        # A step's line comes just before its metrics.
        if (found := STEP.match(line)) and int(found[1]) >= args.saves * args.save_every + 2:
            break
    else:
        sys.exit(f"-- the run ended by itself, with {process.wait()}")
    kill_all(process.pid)
    process.wait()
    return saves


def resume(args, steps):
    began, loaded = time.monotonic(), None
    process = start(command(args, "resumed", steps))
    for line in lines_of(process):
        if loaded is None and STEP.match(line):
            loaded = time.monotonic() - began
    if process.wait() != 0:
        sys.exit(f"-- the resumed run ended with {process.returncode}")
    print(f"-- resumed: {loaded or 0:.1f} s until the first step's line, {time.monotonic() - began:.1f} s in all")
    return metrics(args.folder / "resumed.jsonl")


def judge_saves(args, saves, killed, rate):
    """Whether every save kept its promise."""
    rates = [line["tokens_per_s"] for step, line in killed.items() if step > 3]
    step_seconds = args.batch * args.tokens * args.ranks / statistics.median(rates)
    print(f"-- tokens/s: median {statistics.median(rates):.0f}, lowest {min(rates):.0f}; a step takes {step_seconds:.3f} s")
    good = True
    for save in saves:
        bound = LIMIT * save["copied"] / rate
        within = save["blocked"] <= bound
        judged = save["copied"] >= LEAST_JUDGED
        verdict = "not judged:" if not judged else "within" if within else "BEYOND"
        print(f"-- {save['tag']}: {save['bytes'] / 1e9:.2f} GB in {save['seconds']:.2f} s, {save['copied'] / 1e9:.2f} GB copied; "
              f"training stood still for {save['blocked']:.3f} s; {verdict} {LIMIT} x a copy's time = {bound:.3f} s")
        if save["seconds"] > args.save_every * step_seconds:
            print(f"   the next save waited for the disk: give --save-every {int(save['seconds'] / step_seconds * 1.2) + 1} or more")
        good = good and (within or not judged)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("capstan")
    parser.add_argument("folder", type=Path, help="must not exist yet")
    parser.add_argument("--model", default="gpt2-tiny")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--offload", action="store_true", help="optimizer states in host memory")
    parser.add_argument("--save-every", type=int, default=60)
    parser.add_argument("--saves", type=int, default=3, help="the run is killed in the last of them")
    args = parser.parse_args()
    if args.saves < 3:
        parser.error("--saves: 3 or more; the first is not judged and the last is killed")
    args.folder.mkdir(parents=True)
    (args.folder / "text.txt").write_text("".join(f"The number {i} comes before {i + 1}.\n" for i in range(300_000)))
    rate = copy_rate(args)
    began = time.monotonic()
    saves = train_and_kill(args)
    killed, newest = metrics(args.folder / "killed.jsonl"), saves[-1]["tag"]
    unfinished = [path.name for path in (args.folder / "run").iterdir() if path.is_dir() and path.name != newest]
    print(f"-- killed after step {max(killed)} and {time.monotonic() - began:.1f} s; the newest that was reported: {newest}; "
          f"beside it: {', '.join(sorted(unfinished)) or 'no unfinished one'}", flush=True)
    resumed = resume(args, max(killed))
    both = sorted(set(killed) & set(resumed))
    differ = [step for step in both if killed[step]["loss"] != resumed[step]["loss"]]
    for step in dict.fromkeys(both[:2] + both[-1:]):
        print(f"   step {step}: {killed[step]['loss']!r} before the kill, {resumed[step]['loss']!r} after")
    print(f"-- losses: {len(both) - len(differ)} of {len(both)} steps equal to the last bit"
          + (f"; the first that differs: {differ[0]}" if differ else ""))
    good = judge_saves(args, saves, killed, rate)
    steps = range(int(newest.removeprefix("global_step")) + 1, max(killed) + 1)
    good = good and len(steps) > 0 and both == list(steps) and not differ
    print("-- good" if good else "-- NOT good", flush=True)
    shutil.rmtree(args.folder / "run")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

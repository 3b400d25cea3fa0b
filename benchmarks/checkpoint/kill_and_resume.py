#!/usr/bin/env python3
"""Trains, saves in the background, is killed (SIGKILL) while a save is under way, and resumes: what a save costs.

    benchmarks/checkpoint/kill_and_resume.py build/release/bin/capstan FOLDER --model gpt2-xl --tokens 1024 --batch 16

Prints how long training stood still for each save, the rate of training over the steps, and the losses of the steps that
both runs took. A checkpoint of gpt2-xl has 22 GB; two of them are in FOLDER at a time.
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
from pathlib import Path

SAVED = re.compile(r"saved (\S+) \((.*)\)")


def command(args, run, steps):
    config = json.dumps({
        "train_micro_batch_size_per_gpu": args.batch, "bf16": {"enabled": True}, "gradient_clipping": 1.0,
        "zero_optimization": {"stage": args.stage, **({"offload_optimizer": {"device": "cpu"}} if args.offload else {})},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}})
    return [args.capstan, "train", "-n", str(args.ranks), "--config", config, "--model", args.model, "--tokens", str(args.tokens),
            "--data", str(args.folder / "text.txt"), "--max-steps", str(steps), "--log-every", "1", "--eval-every", "0",
            "--eval-batches", "1", "--sample-tokens", "0", "--save", str(args.folder / "run"), "--save-every", str(args.save_every),
            "--keep-last", "1", "--resume", str(args.folder / "run"), "--metrics", str(args.folder / f"{run}.jsonl")]


def start(words):
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def metrics(path):
    return {line["step"]: line for line in map(json.loads, path.read_text().splitlines()) if "loss" in line}


def kill_all(pid):
    """The launcher and its ranks at once: nobody has time to do anything in order."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            pass  # it has ended meanwhile
    doomed = [pid]
    for each in doomed:
        doomed += [child for child, parent in parents.items() if parent == each]
    for each in doomed:
        os.kill(each, signal.SIGKILL)


def train_and_kill(args):
    """Kills the run when the third save has begun; returns the last tag that was reported."""
    process, tags = start(command(args, "killed", 10**6)), []
    for line in process.stdout:
        print(line, end="", flush=True)
        if found := SAVED.search(line):
            tags.append(Path(found[1]).name)
        steps = metrics(args.folder / "killed.jsonl") if len(tags) >= 2 else {}
        if steps and max(steps) >= 3 * args.save_every + 1:
            break
    kill_all(process.pid)
    process.wait()
    assert len(tags) >= 2, "the run ended by itself"
    return tags[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("capstan")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="gpt2-tiny")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument("--offload", action="store_true", help="optimizer states in host memory")
    parser.add_argument("--save-every", type=int, default=60)
    args = parser.parse_args()
    args.folder.mkdir(parents=True)
    (args.folder / "text.txt").write_text("".join(f"The number {i} comes before {i + 1}.\n" for i in range(300_000)))
    reported = train_and_kill(args)
    killed = metrics(args.folder / "killed.jsonl")
    begin = int(reported.removeprefix("global_step"))
    rates = [line["tokens_per_s"] for step, line in sorted(killed.items()) if step > 3]
    print(f"-- killed after step {max(killed)}; the newest that was reported: {reported}; tokens/s: median "
          f"{statistics.median(rates):.0f}, lowest {min(rates):.0f}", flush=True)
    process = start(command(args, "resumed", max(killed) + 2))
    for line in process.stdout:
        print(line, end="", flush=True)
    assert process.wait() == 0
    resumed = metrics(args.folder / "resumed.jsonl")
    both = sorted(set(killed) & set(resumed))
    print(f"-- resumed at step {min(resumed)}; losses of the steps that both runs took (killed, resumed):")
    for step in both[:5] + both[-1:]:
        print(f"   {step}: {killed[step]['loss']:.6f} {resumed[step]['loss']:.6f}")
    same = sum(killed[step]["loss"] == resumed[step]["loss"] for step in both)
    print(f"-- {same} of {len(both)} equal to the last bit")
    assert begin < min(resumed) and both
    shutil.rmtree(args.folder / "run")
    return 0


if __name__ == "__main__":
    sys.exit(main())

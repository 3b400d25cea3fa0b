#!/usr/bin/env python3
"""The long counts that `make test` runs a tenth of or less; each result goes to docs/campaigns.md with its date.

    tools/campaign.py --python PYTHON [--only fuzz …]
"""

import argparse
import datetime
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs" / "campaigns.md"
# The trees that `make test` also uses: what they are configured with.
TREES = {
    "release": ["--preset", "release"],
    "asan_torch": ["--preset", "asan", "-D", "CAPSTAN_CUDA=OFF"],
    "tsan_torch": ["--preset", "tsan", "-D", "CAPSTAN_CUDA=OFF"],
}


@dataclass
class Campaign:
    what: str
    tree: str
    program: list = field(default_factory=list)   # in the build's bin/, with arguments
    tests: list = field(default_factory=list)     # or: arguments of tools/run_tests.py
    script: list = field(default_factory=list)    # or: a Python script of ours, with arguments


CAMPAIGNS = {
    "fuzz": Campaign("1,000,000 mutated configurations under asan and ubsan", "asan_torch", program=["config_fuzz", "1000000"]),
    "fuzz-files": Campaign("1,000,000 changed files for every reader under asan and ubsan", "asan_torch", program=["fuzz", "1000000"]),
    "kills": Campaign("killed and stopped ranks: tests of comm, ten times", "release",
                      tests=["--folder", "comm", "--repeat", "10"]),
    "checkpoint-kills": Campaign("200 kills at random moments of saves", "release", program=["checkpoint_kills", "200"]),
    "run-kills": Campaign("200 kills of two ranks that save in the background", "release",
                          script=["tests/checkpoint/run_kills.py", "200"]),
    "nvme-kills": Campaign("100 kills at random moments of training with all state on disk", "release",
                           script=["tests/cli/nvme_kills.py", "100"]),
    "launch": Campaign("real launchers and failing ranks: tests of launch, ten times", "release",
                       tests=["--folder", "launch", "--repeat", "10"]),
    "faults": Campaign("file faults under asan and ubsan: tests of io, ten times", "asan_torch",
                       tests=["--programs-only", "--folder", "io", "--repeat", "10"]),
    "mutations": Campaign("one promise broken at a time: which tests notice", "release", script=["tools/mutate.py"]),
    "asan": Campaign("every test program under asan and ubsan", "asan_torch", tests=["--programs-only", "--timeout", "3600"]),
    "tsan": Campaign("every test program under tsan", "tsan_torch", tests=["--programs-only", "--timeout", "3600"]),
}


def run_campaign(campaign, python):
    """Builds and runs one campaign; returns (exit code, last line, minutes)."""
    tree = ROOT / "build" / campaign.tree
    built = subprocess.run([python, str(ROOT / "tools/build.py"), "--python", python, "--tree", str(tree),
                            *TREES[campaign.tree]])
    if built.returncode != 0:
        return built.returncode, "did not build", 0.0
    if campaign.program:
        command = [str(tree / "bin" / campaign.program[0]), *campaign.program[1:]]
    elif campaign.script:
        command = [python, str(ROOT / campaign.script[0]), *campaign.script[1:]]
    else:
        command = [python, str(ROOT / "tools/run_tests.py"), "--python", python, "--build", str(tree), *campaign.tests]
    started, last = time.monotonic(), ""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True,
                               env={**os.environ, "CAPSTAN_BIN": str(tree / "bin")})
    for line in process.stdout:
        print(line, end="", flush=True)
        last = line.strip() or last
    code = process.wait()
    return code, last if code == 0 else f"exit code {code}: {last}", (time.monotonic() - started) / 60


def git(*words):
    return subprocess.run(["git", "-C", str(ROOT), *words], stdout=subprocess.PIPE, text=True).stdout.strip()


def record(campaign, result, minutes):
    commit = git("rev-parse", "--short", "HEAD")
    if git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{RECORD.relative_to(ROOT)}"):
        commit += "-dirty"
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M")
    machine = f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores"
    with open(RECORD, "a") as out:
        out.write(f"| {now} | {commit} | {machine} | {campaign.what} | {result} | {minutes:.1f} |\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", required=True)
    parser.add_argument("--only", action="append", choices=list(CAMPAIGNS), default=[])
    options = parser.parse_args()
    worst = 0
    for name in options.only or list(CAMPAIGNS):
        print(f"== {name}: {CAMPAIGNS[name].what}", flush=True)
        code, result, minutes = run_campaign(CAMPAIGNS[name], options.python)
        record(CAMPAIGNS[name], result, minutes)
        worst = worst or code
    return worst


if __name__ == "__main__":
    sys.exit(main())

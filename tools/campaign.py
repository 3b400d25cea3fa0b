#!/usr/bin/env python3
"""The long counts that `make test` runs a tenth of, and the sanitizers; results go to docs/campaigns.md with their date.

    tools/campaign.py --python PYTHON [--only asan …]

Tests read CAPSTAN_CAMPAIGN (absent: the share of `make test`; 1: the full count).
"""

import argparse
import datetime
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs" / "campaigns.md"
HEADER = """# Campaigns

Long runs of `make campaign`, newest last. `make test` runs a tenth of each count.

| date (UTC) | commit | machine | campaign | result | minutes |
|---|---|---|---|---|---:|
"""
# name -> (preset, definitions, what it is). Without libtorch, which is not instrumented, for the sanitizers.
NO_TORCH = ["-D", "CAPSTAN_TORCH=OFF", "-D", "CAPSTAN_CUDA=OFF"]
CAMPAIGNS = {
    "full": ("release", [], "full counts, every test"),
    "asan": ("asan", NO_TORCH, "full counts under address and undefined-behaviour sanitizers"),
    "tsan": ("tsan", NO_TORCH, "full counts under the thread sanitizer"),
}


def run_campaign(name, python):
    """Builds and runs one campaign; returns (exit code, last line, minutes)."""
    preset, definitions, _ = CAMPAIGNS[name]
    tree = ROOT / "build" / preset
    built = subprocess.run([python, str(ROOT / "tools/build.py"), "--python", python, "--preset", preset, *definitions])
    if built.returncode != 0:
        return built.returncode, "did not build", 0.0
    started = time.monotonic()
    command = [python, str(ROOT / "tools/run_tests.py"), "--python", python, "--build", str(tree),
               "--timeout", "14400"] + ([] if preset == "release" else ["--programs-only"])
    process = subprocess.Popen(command, env=dict(os.environ, CAPSTAN_CAMPAIGN="1"), stdout=subprocess.PIPE, text=True)
    last = ""
    for line in process.stdout:
        print(line, end="", flush=True)
        last = line.strip() or last
    return process.wait(), last, (time.monotonic() - started) / 60


def record(name, result, minutes):
    if not RECORD.exists():
        RECORD.write_text(HEADER)
    commit = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], stdout=subprocess.PIPE,
                            text=True).stdout.strip()
    cores = len(os.sched_getaffinity(0))
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M")
    with open(RECORD, "a") as out:
        out.write(f"| {now} | {commit} | {platform.machine()}, {cores} cores | {CAMPAIGNS[name][2]} | {result} "
                  f"| {minutes:.1f} |\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", required=True)
    parser.add_argument("--only", action="append", choices=sorted(CAMPAIGNS), default=[])
    options = parser.parse_args()
    worst = 0
    for name in options.only or list(CAMPAIGNS):
        code, last, minutes = run_campaign(name, options.python)
        result = last if re.fullmatch(r"\d+ passed, \d+ failed, \d+ skipped|did not build", last) else f"broke: {last}"
        record(name, result, minutes)
        worst = worst or code
    return worst


if __name__ == "__main__":
    sys.exit(main())

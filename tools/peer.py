#!/usr/bin/env python3
"""Puts the real DeepSpeed into a folder, for the Python that runs this and over its torch.

    tools/peer.py build/peer

Tests of checkpoints go to and from it; nothing else of the project needs it.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from setup import LOCK, fingerprint, read_section


def install(folder, lines):
    command = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--disable-pip-version-check",
               "--no-build-isolation", "--target", str(folder)]
    # From source, with the build tools from the folder itself. No kernel is built: the CPU path needs none.
    env = dict(os.environ, PYTHONPATH=str(folder), DS_BUILD_OPS="0", DS_ACCELERATOR="cpu")
    source = [line for line in lines if line.startswith("deepspeed==")]
    for part in ([line for line in lines if line not in source], source):
        subprocess.run([*command, *part], check=True, env=env, stdin=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.resolve()
    lines = read_section(LOCK, "peer")
    stamp, key = folder / "stamp", fingerprint(*lines, sys.executable, sys.version)
    if stamp.exists() and stamp.read_text() == key:
        return 0
    print(f"peer: installing {len(lines)} pinned packages into {folder}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        install(folder, lines)
    except subprocess.CalledProcessError as error:
        shutil.rmtree(folder, ignore_errors=True)
        print(f"peer: pip failed ({error.returncode}); tests that need the real DeepSpeed will be skipped", flush=True)
        return 1
    stamp.write_text(key)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A rank that the kernel kills for host memory is told from one that somebody killed."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from launching import CAPSTAN, clean_environment

LIMIT = 256 << 20


def make_group():
    """A cgroup of LIMIT bytes, of either version; the reason where this machine allows none."""
    name = f"capstan-test-{uuid.uuid4().hex[:8]}"
    version1 = Path("/sys/fs/cgroup/memory")
    top, file = (version1, "memory.limit_in_bytes") if version1.is_dir() else (Path("/sys/fs/cgroup"), "memory.max")
    group = top / name
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made under {top}: {error.strerror}")
    try:
        (group / file).write_text(str(LIMIT))
        swap = group / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")
    except OSError as error:
        group.rmdir()
        pytest.skip(f"the cgroup {group} takes no memory limit: {error.strerror}")
    return group


def test_killed_for_host_memory():
    group = make_group()
    try:
        eat = ("import os, time\nif os.environ['RANK'] == '1':\n    hog = []\n"
               "    while True: hog.append(bytearray(b'x' * (8 << 20)))\ntime.sleep(600)")
        done = subprocess.run(
            ["sh", "-c", f"echo $$ > {group}/cgroup.procs && exec \"$@\"", "sh", CAPSTAN, "launch", "-n", "2",
             "--launcher", "local", "--grace", "2", "--no_python", sys.executable, "-c", eat],
            env=clean_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
        assert done.returncode == 137, done.stderr
        sentence = done.stderr.splitlines()[-1]
        assert "rank 1 was killed for host memory: peak RSS" in sentence
        assert f"limit 256 MiB (the limit of cgroup /{group.name})" in sentence
        assert "fewer ranks per host" in sentence
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            os.kill(int(pid), 9)
        subprocess.run(["sh", "-c", f"for i in 1 2 3 4 5 6 7 8 9; do rmdir {group} && exit 0; sleep 0.3; done"],
                       check=True, timeout=60, capture_output=True)

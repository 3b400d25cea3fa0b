#!/usr/bin/env python3
"""Makes an environment with the real DeepSpeed, over the torch of the Python that runs this.

    tools/peer.py build/peer

Tests of checkpoints go to and from it; nothing else of the project needs it.
"""

import argparse
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

VERSION = "0.19.8"
NEEDS = ["setuptools<82", "wheel", "packaging", "hjson", "psutil", "py-cpuinfo", "tqdm", "einops", "msgpack", "pydantic", "ninja"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.resolve()
    python = folder / "bin" / "python"
    have = subprocess.run([python, "-c", f"import deepspeed; assert deepspeed.__version__ == '{VERSION}'"],
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) if python.exists() else None
    if have is not None and have.returncode == 0:
        return 0
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    own = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True,
                         stdout=subprocess.PIPE, text=True).stdout.strip()
    (Path(own) / "torch_of_the_project.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, *NEEDS], check=True)
    # Its kernels are not built: the CPU path needs none of them.
    env = dict(os.environ, DS_BUILD_OPS="0", DS_ACCELERATOR="cpu")
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", f"deepspeed=={VERSION}"], check=True, env=env)
    return 0


if __name__ == "__main__":
    sys.exit(main())

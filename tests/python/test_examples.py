"""The Python examples run at a tiny size on two ranks, DDP beside stage 2 and stage 3, and learn."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(os.environ.get("CAPSTAN_SOURCE", Path(__file__).parents[2])) / "examples"


def run(words, folder):
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    done = subprocess.run([sys.executable, "-m", *words], cwd=folder, env=environment, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:]
    losses = [float(text) for text in re.findall(r"loss ([0-9.]+)", done.stdout)]
    assert len(losses) >= 2 and losses[-1] < losses[0], done.stdout[-2000:]
    print(done.stdout.strip().splitlines()[-1])
    return losses


@pytest.mark.parametrize("folder, script", [("04_causal_lm", "train.py"), ("04_causal_lm", "../05_seq2seq/train.py")])
def test_through_accelerate(folder, script):
    pytest.importorskip("accelerate", reason="needs the package accelerate")
    launch = ["accelerate.commands.launch", "--config_file"]
    results = [run([*launch, f"{kind}.yaml", "--main_process_port", "0", script], EXAMPLES / folder)
               for kind in ("zero2", "zero3")]
    assert results[0] == pytest.approx(results[1], abs=2e-3)
    run([*launch, "ddp.yaml", "--main_process_port", "0", script], EXAMPLES / folder)


def test_images_through_the_engine():
    launch = ["torch.distributed.run", "--standalone", "--nproc_per_node", "2", "train.py", "--steps", "12"]
    results = [run([*launch, "--stage", str(stage)], EXAMPLES / "06_images_python") for stage in (-1, 2, 3)]
    assert results[1] == results[2]
    assert results[0] == pytest.approx(results[1], abs=2e-3)

"""The examples run on two ranks, and their losses fall to less than half."""
import os
import re
import subprocess

import pytest

BIN = os.environ["CAPSTAN_BIN"]
EXAMPLES = ["01_train", "02_two_models", "03_images"]


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("ranks", [1, 2])
def test_example_trains(name, ranks):
    program = os.path.join(BIN, f"example_{name}")
    if not os.path.exists(program):
        pytest.skip("this build has no libtorch")
    run = subprocess.run([os.path.join(BIN, "capstan"), "launch", "-n", str(ranks), "--no_python", program],
                         capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    losses = [float(x) for x in re.findall(r"(?:loss|teacher) ([0-9.]+)", run.stdout)]
    assert len(losses) >= 4, run.stdout
    assert losses[-1] < losses[0] / 2, run.stdout

"""Words that the command line does not know are named, with the nearest that it does."""

import os
import re
import subprocess
from pathlib import Path

import pytest

CAPSTAN = Path(os.environ["CAPSTAN_BIN"]) / "capstan"

MISTAKES = {
    "far from any": (["nonsense"], 'there is no command "nonsense"', "choose one of: config, checkpoint, launch"),
    "a typing mistake": (["lanuch"], 'there is no command "lanuch"', 'did you mean "launch"?'),
    "of a command": (["config", "chek"], 'there is no command "chek"', 'did you mean "check"?'),
    "a flag": (["train", "--max-stepz", "3"], '"--max-stepz" was not expected here', "did you mean --max-steps?"),
    "no command": ([], "a command is missing", "choose one of: config, checkpoint, launch"),
    "no command of a command": (["config"], "a command is missing", "choose one of: check, explain"),
    "a flag before the command": (["--versoin", "train"], '"--versoin" was not expected here', "did you mean --version?"),
    "a flag alone": (["--versoin"], '"--versoin" was not expected here', "did you mean --version?"),
    "a flag in the wrong place": (["--max-steps=3", "train"], '"--max-steps=3" was not', "write it after capstan train\n"),
    "a flag instead of what is required": (["checkpoint", "inspect", "--tensorz"], '"--tensorz" was not', "mean --tensors?"),
    "a flag of two names": (["train", "-n", "0"], "error: -n,--ranks is 0\n", "give a whole number above 0\n"),
    "a value": (["train", "--max-steps", "many"], "error: --max-steps is many\n", "give a whole number above 0\n"),
    "a number below all": (["train", "--save-every", "-3"], "error: --save-every is -3\n", "give 0 or a whole number above it\n"),
    "a number of a range": (["checkpoint", "export", "a", "b", "--stage", "7"], "--stage is 7\n", "a whole number from 0 to 3\n"),
    "a word of several": (["train", "--device", "tpu"], "--device is tpu\n", "give one of auto,cpu,cuda\n"),
    "a launcher": (["launch", "--launcher", "sluurm", "x.py"], "--launcher is sluurm\n", "give one of auto,local,ssh,slurm,mpi\n"),
    "a schedule": (["pipeline", "show", "--stages=2", "--micro-batches=4", "--schedule=2f2b"], "--schedule is 2f2b\n", "one of gpipe,1f1b,"),
    "half a number": (["train", "--layers", "3.5"], "--layers is 3.5\n", "give a whole number above 0\n"),
    "no value": (["train", "--max-steps"], "--max-steps has no value\n", "give a whole number above 0\n"),
}


@pytest.mark.parametrize("case", MISTAKES, ids=lambda c: c.replace(" ", "_"))
def test_an_unknown_word_is_named(case):
    words, what, fix = MISTAKES[case]
    done = subprocess.run([CAPSTAN, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert what in done.stderr and "fix:" in done.stderr and fix in done.stderr
    assert "where: capstan" in done.stderr and done.stdout == ""


def test_help_is_no_mistake():
    for words in (["--help"], ["config", "--help"], ["train", "-h"]):
        done = subprocess.run([CAPSTAN, *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and "Usage:" in done.stdout and done.stderr == ""


def test_the_help_of_launch_shows_where_the_script_goes():
    done = subprocess.run([CAPSTAN, "launch", "--help"], capture_output=True, text=True, timeout=60)
    assert "Usage: capstan launch [OPTIONS] SCRIPT [ARGUMENTS...]\n" in done.stdout


def test_the_version_is_told():
    done = subprocess.run([CAPSTAN, "--version"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and re.fullmatch(r"capstan \d+\.\d+\.\d+\n", done.stdout)

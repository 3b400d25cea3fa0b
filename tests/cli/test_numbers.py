"""Every number on the command line is taken as it is written or refused: nothing is cut off, wrapped round or guessed."""

import os
import re
import subprocess
from pathlib import Path

import pytest

CAPSTAN = Path(os.environ["CAPSTAN_BIN"]) / "capstan"
COMMANDS = ["config check", "config explain", "checkpoint inspect", "checkpoint verify", "checkpoint convert", "checkpoint export",
            "checkpoint prune", "train", "generate", "launch", "report", "bench io", "pipeline show"]
NO_NUMBERS = ["", "text", "1x", "1,5", "nan", "inf", "-inf", "1e999", "-", "１"]
NO_INTEGERS = [*NO_NUMBERS, "3.5", "1e3", "0x10", "010", "true", "99999999999999999999999", "-99999999999999999999999"]

# What each option refuses beside these, by the meaning of the number.
COUNT = ["0", "-1", "99999999999999999999"]
COUNT_OR_NONE = ["-1"]
SHARE = ["-0.1", "1.1"]
MAY_BE_LEFT_OUT = {"--profile"}  # the value: "--profile=" is "--profile"
REFUSED = {
    "train": {"--ranks": COUNT, "--max-steps": COUNT, "--seed": ["-1", "18446744073709551616"], "--layers": COUNT,
              "--width": COUNT, "--heads": COUNT, "--context": COUNT, "--dropout": SHARE, "--token-bits": ["8", "0", "-16"],
              "--vocab": COUNT, "--tokens": COUNT, "--validation": SHARE, "--log-every": [*COUNT, "2147483648"],
              "--eval-every": [*COUNT_OR_NONE, "2147483648"], "--eval-batches": COUNT, "--sample-tokens": COUNT_OR_NONE,
              "--profile": COUNT_OR_NONE,
              "--save-every": COUNT_OR_NONE, "--keep-last": COUNT_OR_NONE, "--pipe": COUNT, "--tensor": COUNT, "--sequence": COUNT},
    "generate": {"--max-new-tokens": COUNT, "--temperature": ["0", "-1"], "--top-k": COUNT_OR_NONE, "--top-p": SHARE,
                 "--seed": ["-1", "18446744073709551616"], "--num-beams": COUNT, "--length-penalty": [], "--ranks": COUNT,
                 "--context": COUNT, "--batch": COUNT},
    "checkpoint export": {"--stage": ["-1", "4"], "--ranks": COUNT},
    "checkpoint prune": {"--keep": COUNT},
    "config check": {"--num_gpus": COUNT, "--hidden-size": COUNT},
    "config explain": {"--num_gpus": COUNT, "--hidden-size": COUNT},
    "launch": {"--num_gpus": ["0", "-2", "2147483648", "1000000"], "--num_nodes": ["0", "-2", "2147483648"],
               "--master_port": ["-1", "65536"], "--ssh_port": ["-1", "65536"], "--node_rank": ["-2", "2147483648"],
               "--grace": ["-1", "86401"]},
    "pipeline show": {"--stages": ["0", "-1", "257"], "--micro-batches": ["0", "-1", "1025"], "--chunks": ["0", "17"],
                      "--forward": ["0", "101"], "--backward-inputs": ["0", "101"], "--backward-weights": ["0", "101"],
                      "--transfer": ["-1", "101"]},
    "bench io": {"--bytes": ["0", "-1", "-1kb", "1.5gb", "1xb", "99999999999999999999", "9999999tb"],
                 "--block-bytes": ["0", "2gb"], "--queue-depth": ["0", "-1", "4097"], "--rounds": ["0", "-1", "1001"]},
}


def run(*words):
    return subprocess.run([CAPSTAN, *words], capture_output=True, text=True, timeout=60)


def number_options(command):
    """Long names of the options that take a number, and whether it is a whole one, as --help tells."""
    text = run(*command.split(), "--help").stdout
    lines = re.findall(r"^  (-\S+) (INT|UINT|FLOAT)", text, re.MULTILINE)
    return {next(name for name in names.split(",") if name.startswith("--")): kind != "FLOAT" for names, kind in lines}


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_number_is_refused_by_every_option(command):
    options = number_options(command)
    assert set(options) == set(REFUSED.get(command, {}))  # a new option says here what it refuses
    for option, whole in options.items():
        # The rest is right: no other mistake may be the first to be told.
        rest = ["--no_python", "true"] if command == "launch" else []
        for value in (NO_INTEGERS if whole else NO_NUMBERS) + REFUSED[command][option]:
            if value == "" and option in MAY_BE_LEFT_OUT:
                continue
            done = run(*command.split(), f"{option}={value}", *rest)
            said = f"{option}={value}: {done.returncode} {done.stdout} {done.stderr}"
            assert done.returncode == 2 and done.stdout == "", said
            what, where, fix = done.stderr.splitlines()
            assert what.startswith("capstan: error: ") and where.startswith("  where: "), said
            assert fix.startswith("  fix:   ") and len(fix) > 15, said
            assert (value in what or "is not a possible size" in what) and option in what + where, said


@pytest.mark.parametrize("words, value", [
    (["train", "--seed"], "18446744073709551615"), (["train", "--max-steps"], "9223372036854775807"),
    (["train", "--validation"], "1e-3"), (["generate", "m", "p", "--num-beams=2", "--length-penalty"], "-1.5"),
    (["bench", "io", "--folder=.", "--bytes"], "64mb")])
def test_numbers_at_the_edge_are_taken(words, value):
    done = run(*words[:-1], f"{words[-1]}={value}", "--no-such-flag")  # which ends it before anything starts
    assert done.returncode == 2 and '"--no-such-flag" was not expected here' in done.stderr


def test_a_number_that_is_too_large_is_told_as_that():
    for value in ("99999999999", "99999999999999999999999"):
        assert "give a smaller number" in run("train", f"--eval-every={value}").stderr
    assert "give a smaller number" in run("launch", "--grace=1e999", "--no_python", "true").stderr
    assert "give a number nearer to 0" in run("launch", "--node_rank=-99999999999", "--no_python", "true").stderr
    assert "give a whole number above 0" in run("train", "--layers=1e99").stderr  # it is no whole one
    assert "give a number from 0 to 1" in run("train", "--dropout=99999999999").stderr
    assert "give a whole number above 0" in run("train", "--layers=-99999999999").stderr
    assert "give a whole number that is not negative" in run("train", "--seed=-99999999999").stderr

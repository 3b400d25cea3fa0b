"""The numbers in docs/pipelines.md are those that the simulator finds."""

import os
import re
import subprocess
from pathlib import Path

CAPSTAN = Path(os.environ["CAPSTAN_BIN"]) / "capstan"
PAGE = (Path(os.environ["CAPSTAN_SOURCE"]) / "docs/pipelines.md").read_text()


def test_the_table_of_efficiencies():
    rows = re.findall(r"^\| (\d+) \|(( [\d.]+ % \|){5})$", PAGE, re.MULTILINE)
    assert [int(stages) for stages, *_ in rows] == [2, 4, 8, 16]
    for stages, cells, _ in rows:
        for factor, said in zip((1, 2, 4, 8, 16), re.findall(r"[\d.]+", cells), strict=True):
            done = subprocess.run([CAPSTAN, "pipeline", "show", "--stages", stages, "--micro-batches", str(factor * int(stages))],
                                  capture_output=True, text=True, timeout=60)
            assert f"efficiency {said} %" in done.stdout


def test_the_table_of_traffic():
    for stage, per_step in {0: lambda m: 2, 1: lambda m: 2, 2: lambda m: m + 1, 3: lambda m: 3 * m}.items():
        assert re.search(rf"^\| {stage} \|.*\| {per_step(8)} S \| {per_step(32)} S \|$", PAGE, re.MULTILINE), stage


def test_the_example_in_cpp_is_one_that_is_compiled_and_run():
    (file, code), = re.findall(r"<!-- of (tests/\S+) -->\n```cpp\n(.*?)```", PAGE, re.DOTALL)
    tested = [line.strip() for line in (Path(os.environ["CAPSTAN_SOURCE"]) / file).read_text().splitlines()]
    shown = [line.strip() for line in code.splitlines()]
    begin = tested.index(shown[0])
    assert tested[begin:begin + len(shown)] == shown

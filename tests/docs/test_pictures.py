"""Pictures that are made from figures of the documents show these figures."""

import os
import runpy
from pathlib import Path

SOURCE = Path(os.environ["CAPSTAN_SOURCE"])
DRAW = runpy.run_path(str(SOURCE / "benchmarks" / "draw_speed_and_memory.py"))


def test_the_picture_is_what_its_program_draws():
    assert (SOURCE / "docs/pictures/speed_and_memory.svg").read_text() == DRAW["picture"]()


def test_its_figures_are_those_of_the_first_section_of_performance():
    section = (SOURCE / "docs/performance.md").read_text().split("\n## ")[1].replace("*", "")
    for _, rows in DRAW["GROUPS"]:
        for system, speed, memory in rows:
            assert any(system.split(",")[0].lower() in line.lower() and f"| {speed}" in line and f"{memory or ''}" in line
                       for line in section.splitlines() if line.startswith("|")), system

"""Pictures that are made from figures of the documents show these figures."""

import os
import re
import runpy
from pathlib import Path

import pytest

SOURCE = Path(os.environ["CAPSTAN_SOURCE"])
PICTURES = sorted((SOURCE / "docs/pictures").glob("*.svg"))
DRAW = runpy.run_path(str(SOURCE / "benchmarks" / "draw_speed_and_memory.py"))


def test_the_picture_is_what_its_program_draws():
    assert (SOURCE / "docs/pictures/speed_and_memory.svg").read_text() == DRAW["picture"]()


def test_its_figures_are_those_of_the_first_section_of_performance():
    section = (SOURCE / "docs/performance.md").read_text().split("\n## ")[1].replace("*", "")
    for _, rows in DRAW["GROUPS"]:
        for system, speed, memory in rows:
            assert any(system.split(",")[0].lower() in line.lower() and f"| {speed}" in line and f"{memory or ''}" in line
                       for line in section.splitlines() if line.startswith("|")), system


def test_marks_of_an_axis_are_round():
    ticks = runpy.run_path(str(SOURCE / "benchmarks/drawing.py"))["ticks"]
    assert ticks(0, 693, 4) == [0, 200, 400, 600]
    assert ticks(0, 1000, 5) == [0, 200, 400, 600, 800, 1000]
    assert ticks(2, 11, 6) == [2, 4, 6, 8, 10]
    assert ticks(0.1, 0.35, 5) == [0.1, 0.15, 0.2, 0.25, 0.3, 0.35]


@pytest.mark.parametrize("picture", PICTURES, ids=lambda p: p.name)
def test_pictures_are_readable_on_a_phone(picture):
    """Text is at least 10 pixels high where the picture is 360 wide, and marks of a row are 1, 2 or 5 times a power of ten apart."""
    text = picture.read_text()
    width = float(re.search(r'viewBox="0 0 ([\d.]+) ', text)[1])
    sizes = [float(size) for size in re.findall(r'font-size="([\d.]+)"', text)]
    assert sizes and min(sizes) * 360 / width >= 10
    rows = {}
    for y, mark in re.findall(r'y="([\d.]+)" text-anchor="middle">([\d.]+)(?: ms)?<', text):
        rows.setdefault(y, []).append(float(mark))
    for marks in rows.values():
        apart = {b - a for a, b in zip(marks, marks[1:])}
        assert len(apart) == 1 and f"{apart.pop():e}"[0] in "125", marks


def test_a_timeline_shows_every_row_of_a_trace(tmp_path):
    draw = runpy.run_path(str(SOURCE / "benchmarks/engine/draw_timeline.py"))["picture"]
    rows = [("kernel", "gemm"), ("gpu_memcpy", "Memcpy DtoH"), ("user_annotation", "capstan::host_update"), ("gpu_memcpy", "Memcpy HtoD")]
    events = [{"cat": kind, "name": name, "ts": 100_000.0 * i, "dur": 90_000.0} for i, (kind, name) in enumerate(rows)]
    picture = draw(events)
    assert re.findall(r">([A-Z][\w ]+)<", picture) == ["GPU kernels", "Copies to the host", "CPU updates", "Copies to the GPU"]
    assert picture.count("<rect x=") == 4
    assert "CPU updates" in (SOURCE / "docs/pictures/offload_timeline.svg").read_text()

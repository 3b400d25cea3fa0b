"""cmake --install gives a package that a program outside our tree can use, and that can be moved."""

import os
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(os.environ["CAPSTAN_SOURCE"])
BUILD = Path(os.environ["CAPSTAN_BIN"]).parent
PYTHON = os.environ["CAPSTAN_PYTHON"]


def tool(name):
    beside = Path(PYTHON).parent / name
    return str(beside) if beside.exists() else shutil.which(name)


def run(*command):
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Installed into one folder, then moved to another: nothing may depend on where it was."""
    first = tmp_path_factory.mktemp("install") / "first"
    run(tool("cmake"), "--install", BUILD, "--prefix", first, "--strip")
    moved = first.with_name("capstan")
    first.rename(moved)
    return moved


def test_installed_files_name_neither_source_nor_build_tree(installed):
    needles = [str(SOURCE).encode() + b"/", str(BUILD).encode()]
    # An interpreter inside the tree (.venv) is where libtorch lies; that path is a stated default.
    torch_home = str(Path(PYTHON).parent.parent).encode()
    found = []
    for path in sorted(p for p in installed.rglob("*") if p.is_file()):
        content = path.read_bytes().replace(torch_home, b"")
        found += [str(path) for needle in needles if needle in content]
    assert not found


def test_installed_program_runs(installed):
    assert "Train models" in run(installed / "bin" / "capstan", "--help")


def test_every_header_of_the_library_is_installed(installed):
    ours = {str(p.relative_to(SOURCE)) for p in (SOURCE / "capstan").rglob("*.h")}
    assert ours == {str(p.relative_to(installed / "include")) for p in (installed / "include").rglob("*.h")}


# docs/cpp.md is the program outside our tree: its files and commands, as a reader would copy them.
def test_the_program_of_the_cpp_page_builds_and_trains(installed, tmp_path):
    page = (SOURCE / "docs/cpp.md").read_text()
    console = runpy.run_path(str(SOURCE / "tests/docs/test_console_blocks.py"))["run_console"]
    files = dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)^```", page, re.M | re.S))
    assert {"CMakeLists.txt", "main.cpp", "gpu.cpp", "ds_config.json"} == set(files)
    if any((installed / "lib").glob("libcapstan_comm_nccl*")):
        files["CMakeLists.txt"] += "add_library(gpu SHARED gpu.cpp)\ntarget_link_libraries(gpu PRIVATE capstan::engine capstan::comm_nccl)\n"
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    path = f"{Path(tool('cmake')).parent}:{os.environ['PATH']}"
    blocks = re.findall(r"<!-- checked by tests/install -->\n```console\n(.*?)^```", page, re.M | re.S)
    assert len(blocks) == 2
    for block in blocks:
        console(block, tmp_path, HOME=str(installed.parent), PATH=path, CMAKE_BUILD_PARALLEL_LEVEL="2")

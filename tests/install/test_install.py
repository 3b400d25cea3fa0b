"""cmake --install gives a package that a program outside our tree can use, and that can be moved."""

import os
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
    moved = first.with_name("moved")
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


def test_out_of_tree_program_trains_with_the_installed_engine(installed, tmp_path):
    ninja = tool("ninja")
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []
    run(tool("cmake"), "-S", SOURCE / "tests/install/consumer", "-B", tmp_path, *generator,
        f"-DCMAKE_PREFIX_PATH={installed}", "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O1")
    run(tool("cmake"), "--build", tmp_path)
    assert run(tmp_path / "consumer") == "learnt on rank 0 of 1\n"
    done = subprocess.run([tmp_path / "consumer", "7"], capture_output=True, text=True)
    assert done.returncode == 2 and "fix:" in done.stderr
    two = run(installed / "bin" / "capstan", "launch", "-n", 2, "--no_prefix", "--no_python", tmp_path / "consumer")
    assert "learnt on rank 0 of 2" in two and "learnt on rank 1 of 2" in two

"""The build driver with stand-ins for cmake: which tool it takes, and when it configures again."""

import os
import subprocess
import sys

import pytest

from load_tool import SOURCE, load_tool


@pytest.fixture
def machine(tmp_path):
    """A folder with an interpreter and a cmake that writes down how it was called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "python3").symlink_to(sys.executable)

    def cmake(version):
        script = (f'#!/bin/sh\ncase "$1" in --version) echo "cmake version {version}";;\n'
                  f'*) echo "$@" >> {tmp_path}/calls; echo "-- capstan: part X: ON";;\nesac\n'
                  f'case "$1" in --preset) mkdir -p "$4"; touch "$4/Makefile";; esac\n')
        (folder / "cmake").write_text(script)
        (folder / "cmake").chmod(0o755)

    def build(*arguments):
        environment = {"PATH": "/usr/bin:/bin", "HOME": os.environ.get("HOME", "/")}
        return subprocess.run(
            [sys.executable, str(SOURCE / "tools/build.py"), "--python", str(folder / "python3"), "--tree",
             str(tmp_path / "tree"), *arguments],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def calls(kind):
        path = tmp_path / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(kind)]

    machine.cmake, machine.build, machine.calls = cmake, build, calls
    return machine


def test_it_configures_once_and_again_only_when_arguments_change(machine):
    machine.cmake("4.4.4")
    for arguments in ([], [], ["--cuda", "wheels"], ["--cuda", "wheels"]):
        done = machine.build(*arguments)
        assert done.returncode == 0, done.stdout
    configured = machine.calls("--preset")
    assert len(configured) == 2 and len(machine.calls("--build")) == 4
    assert "-DCAPSTAN_PYTHON_EXECUTABLE=" in configured[0] and "-DCAPSTAN_CUDA=wheels" in configured[1]


def test_without_a_build_it_always_configures(machine):
    machine.cmake("4.4.4")
    for _ in range(2):
        assert machine.build("--configure-only").returncode == 0
    assert len(machine.calls("--preset")) == 2 and not machine.calls("--build")


def test_an_old_cmake_is_refused_with_the_fix(machine):
    machine.cmake("3.25.1")
    done = machine.build()
    assert done.returncode != 0
    assert "is version 3.25, 3.28 or newer is needed" in done.stdout and "fix:" in done.stdout
    assert machine.calls("--preset") == []


def test_a_missing_interpreter_is_named(machine):
    machine.cmake("4.4.4")
    done = machine.build("--python", "no-such-python")
    assert done.returncode != 0 and "no interpreter no-such-python" in done.stdout


def test_the_systems_compiler_is_recognised_with_and_without_the_flag(tmp_path):
    build = load_tool("build")
    assert not build.links_libstdcxx_statically("g++")
    wrapper = tmp_path / "c++"
    wrapper.write_text('#!/bin/sh\nexec g++ -static-libstdc++ "$@"\n')
    wrapper.chmod(0o755)
    assert build.links_libstdcxx_statically(str(wrapper))

#!/usr/bin/env python3
"""Configures a build tree when it needs it, and builds.

    tools/build.py --python PYTHON [--preset release] [--cuda wheels] [--folder F] [-D NAME=VALUE] [TARGET …]

PYTHON is the interpreter whose torch is linked; cmake and ninja are taken from beside it when they
are there, else from PATH. After the first configuration ninja itself re-runs cmake as needed; it is
run here again only when its arguments change.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST_CMAKE = (3, 28)
BYTES_PER_JOB = 2 << 30  # a source over torch/torch.h was measured at 1.3 GB


class BuildError(Exception):
    pass


def find_tool(name, python):
    beside = Path(python).parent / name
    return str(beside) if beside.exists() else shutil.which(name)


def find_cmake(python):
    cmake = find_tool("cmake", python)
    fix = "\n  fix: python3 -m pip install 'cmake>=4.3' ninja, or leave out SETUP=none"
    if not cmake:
        raise BuildError(f"no cmake beside {python} or in PATH{fix}")
    text = subprocess.run([cmake, "--version"], stdout=subprocess.PIPE, text=True).stdout
    version = tuple(int(n) for n in re.findall(r"\d+", text)[:2])
    if version < OLDEST_CMAKE:
        raise BuildError(f"{cmake} is version {'.'.join(map(str, version))}, 3.28 or newer is needed{fix}")
    return cmake


def jobs():
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, memory // BYTES_PER_JOB))


def links_libstdcxx_statically(compiler):
    """Whether a program of this compiler carries its own libstdc++; it then does not name the shared one."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "a.cpp"), Path(folder, "a.out")
        source.write_text("int main() { throw 1; }\n")
        subprocess.run([compiler, str(source), "-o", str(program)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return program.exists() and b"libstdc++.so" not in program.read_bytes()


def compiler_environment():
    """The environment with a compiler that can be linked with libtorch.

    A program with its own copy of libstdc++ beside the one that libtorch loads dies at exit, in std::locale.
    """
    environment = dict(os.environ)
    wanted, system = environment.get("CXX"), shutil.which("g++", path="/usr/bin:/bin")
    if wanted and shutil.which(wanted) and system and links_libstdcxx_statically(wanted):
        print(f"build: CXX={wanted} links libstdc++ statically, which libtorch does not survive; using {system}")
        environment.update(CXX=system, CUDAHOSTCXX=system)
    return environment


def configure(cmake, tree, options):
    command = [cmake, "--preset", options.preset, "-B", str(tree),
               f"-DCAPSTAN_PYTHON_EXECUTABLE={options.python}"]
    if options.cuda:
        command.append(f"-DCAPSTAN_CUDA={options.cuda}")
    command += [f"-D{d}" for d in options.define]
    ninja = find_tool("ninja", options.python)
    command += [f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else ["-G", "Unix Makefiles"]
    record, wanted = tree / "configured_with.txt", "\n".join(command)
    ready = any((tree / name).exists() for name in ("build.ninja", "Makefile"))
    # A build looks by itself whether a list of sources has changed.
    if ready and not options.configure_only and record.exists() and record.read_text() == wanted:
        return
    done = subprocess.run(command, cwd=ROOT, env=compiler_environment(), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise BuildError(f"configuration failed:\n{done.stdout}")
    print("\n".join(line for line in done.stdout.splitlines() if "capstan: " in line), flush=True)
    record.write_text(wanted)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", required=True)
    parser.add_argument("--preset", default="release")
    parser.add_argument("--tree", help="the build tree, default build/PRESET")
    parser.add_argument("--cuda", default="")
    parser.add_argument("--folder", help="only what the tests of this folder need")
    parser.add_argument("--configure-only", action="store_true")
    parser.add_argument("-D", dest="define", action="append", default=[])
    parser.add_argument("target", nargs="*")
    options = parser.parse_args()
    python = shutil.which(options.python)
    if not python:
        raise BuildError(f"there is no interpreter {options.python}\n  fix: PYTHON=/path/to/python3")
    options.python = os.path.abspath(python)  # not resolved: a venv's python is a link
    tree = Path(options.tree).absolute() if options.tree else ROOT / "build" / options.preset
    cmake = find_cmake(options.python)
    configure(cmake, tree, options)
    if options.configure_only:
        return 0
    targets = list(options.target)
    if options.folder and (tree / "build.ninja").exists() and (tree / "tests" / options.folder).is_dir():
        targets += [f"tests/{options.folder}/all", "capstan/cli/all"]
    command = [cmake, "--build", str(tree), "--parallel", str(jobs())]
    return subprocess.run(command + (["--target", *targets] if targets else [])).returncode


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BuildError as error:
        sys.exit(f"build: {error}")

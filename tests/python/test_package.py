"""What `pip install .` and `pip install python/deepspeed` give, made from the build tree: nothing is compiled."""

import ast
import importlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(os.environ["CAPSTAN_SOURCE"])
BUILD = Path(os.environ["CAPSTAN_BIN"]).parent
DISTRIBUTIONS = [SOURCE / "pyproject.toml", SOURCE / "python/deepspeed/pyproject.toml"]


def table(path, name):
    """One table of a pyproject.toml, as text lines {key: value}; Python 3.10 has no reader of its own."""
    lines = path.read_text().split(f"[{name}]\n", 1)[1].split("\n[", 1)[0].splitlines()
    pairs = (line.split(" = ", 1) for line in lines if " = " in line)
    return {key.strip('"'): value.strip('"') for key, value in pairs}


def tool(name):
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder as site-packages has it: what CMake installs for the wheel beside the package's own files."""
    site = tmp_path_factory.mktemp("site")
    subprocess.run([tool("cmake"), "--install", BUILD, "--prefix", site, "--component", "python"], check=True,
                   stdout=subprocess.DEVNULL)
    shutil.copytree(SOURCE / "python/capstan", site / "capstan", dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(SOURCE / "python/deepspeed/deepspeed", site / "deepspeed",
                    ignore=shutil.ignore_patterns("__pycache__"))
    return site


def run_installed(site, code, *args):
    environment = {key: value for key, value in os.environ.items()
                   if key not in ("CAPSTAN_BIN", "RANK", "WORLD_SIZE", "LOCAL_RANK")}
    environment["PYTHONPATH"] = str(site)
    done = subprocess.run([sys.executable, "-c", code, *args], cwd=site, env=environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("path", DISTRIBUTIONS, ids=["capstan", "deepspeed"])
def test_every_console_script_says_what_it_does(installed, path):
    for entry in sorted(set(table(path, "project.scripts").values())):
        module, _, function = entry.partition(":")
        code = f"import sys, {module} as m; m.{function}()"
        assert "usage" in run_installed(installed, code, "--help").lower(), entry


def test_the_programs_lie_inside_the_package(installed):
    found = run_installed(installed, "from capstan import program; print(program.find())")
    assert Path(found.strip()) == installed / "capstan/bin/capstan"
    assert "libtorch" in run_installed(installed, "import sys; from deepspeed import env_report; sys.argv[1:] = [];"
                                                  "env_report.main()")


def test_the_version_is_the_same_everywhere():
    import capstan

    written = table(DISTRIBUTIONS[0], "project")["version"]
    assert capstan.__version__ == written
    assert f"project(capstan VERSION {written} " in (SOURCE / "CMakeLists.txt").read_text()


def stub_names(body, prefix=""):
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield prefix + node.name
        if isinstance(node, ast.ClassDef):
            yield from stub_names(node.body, f"{prefix}{node.name}.")
        if isinstance(node, ast.AnnAssign):
            yield prefix + node.target.id


def module_names(holder, prefix=""):
    for name, value in vars(holder).items():
        if name.startswith("_"):
            continue
        yield prefix + name
        if isinstance(value, type) and not prefix:
            yield from module_names(value, f"{name}.")


def test_the_stubs_name_what_the_extension_module_has():
    from capstan import _C

    stub = Path(SOURCE / "python/capstan/_C.pyi").read_text()
    named = {name for name in stub_names(ast.parse(stub).body) if not name.rpartition(".")[2].startswith("_")}
    assert named == set(module_names(_C))
    assert (SOURCE / "python/capstan/py.typed").exists()


IMPORT = """
import time, torch
begin = time.process_time()
import deepspeed
print(time.process_time() - begin)
"""


def test_importing_deepspeed_costs_little_beyond_torch(installed):
    """0.3 s of computing, the better of two: a busy machine may stretch one."""
    assert min(float(run_installed(installed, IMPORT).split()[-1]) for _ in range(2)) < 0.3


def version_of(distribution):
    try:
        return tuple(int(part) for part in importlib.metadata.version(distribution).split(".")[:2])
    except importlib.metadata.PackageNotFoundError:
        return (0,)


def test_pip_installs_deepspeed(installed, tmp_path):
    if version_of("pip") == (0,) or version_of("setuptools") < (70, 1):
        pytest.skip("needs pip, and setuptools 70.1 or newer, which makes wheels by itself")
    source = tmp_path / "source"
    shutil.copytree(SOURCE / "python/deepspeed", source, ignore=shutil.ignore_patterns("*.egg-info", "build"))
    target = tmp_path / "site"
    done = subprocess.run([sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--no-build-isolation",
                           "--target", target, source], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    shutil.rmtree(installed / "deepspeed")
    shutil.copytree(target / "deepspeed", installed / "deepspeed")
    assert "True" in run_installed(installed, "import deepspeed; print(deepspeed.initialize is not None)")
    version = importlib.import_module("deepspeed.version").version
    metadata = (target / f"deepspeed-{version}.dist-info/METADATA").read_text()
    assert "Requires-Dist: capstan-train" in metadata
    assert {"deepspeed", "ds_report", "zero_to_fp32.py"} <= {path.name for path in (target / "bin").iterdir()}

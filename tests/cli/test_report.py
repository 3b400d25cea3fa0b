"""`capstan report` and `capstan bench io`, as a user starts them."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

BIN = Path(os.environ["CAPSTAN_BIN"])
HAS_ENGINE = (BIN / "capstan-engine").exists()
STATES = {"ok", "missing", "failed"}


def run(*args, program=BIN / "capstan", env=None):
    return subprocess.run([str(program), *map(str, args)], capture_output=True, text=True, timeout=240,
                          env={**os.environ, **(env or {})})


def rows_of(result):
    report = json.loads(result.stdout)
    return {(row["section"], row["name"]): row for row in report["rows"]}


@pytest.fixture(scope="module")
def report():
    return run("report", "--json")


def test_json_holds_every_fact_that_users_ask_for(report):
    rows = rows_of(report)
    expected = [("build", "capstan"), ("build", "compiler"), ("build", "CUDA kernels"), ("build", "NCCL backend"),
                ("build", "MPI backend"), ("build", "io_uring"), ("cpu", "model"), ("cpu", "cores"),
                ("cpu", "SIMD level"), ("cpu", "NUMA nodes"), ("memory", "host memory"), ("memory", "/dev/shm"),
                ("memory", "locked memory limit"), ("gpu", "devices"), ("io", "path in use")]
    if HAS_ENGINE:
        expected += [("libraries", "libtorch"), ("libraries", "CUDA"), ("libraries", "NCCL"), ("libraries", "MPI"),
                     ("backends", "loopback"), ("backends", "mpi"), ("backends", "nccl")]
    assert [key for key in expected if key not in rows] == []


def test_every_row_is_ok_or_says_why_not(report):
    for row in rows_of(report).values():
        assert row["state"] in STATES
        assert row["value"], row
        if row["state"] == "failed":
            assert row["fix"], row


def test_facts_agree_with_the_kernel(report):
    rows = rows_of(report)
    assert rows["cpu", "cores"]["number"] == len(os.sched_getaffinity(0))
    total = int(re.search(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text())[1]) * 1024
    assert rows["memory", "host memory"]["number"] == total
    flags = set(Path("/proc/cpuinfo").read_text().split())
    level = rows["cpu", "SIMD level"]["value"].split()[0]
    assert level == ("avx512" if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags else
                     "avx2" if {"avx2", "fma"} <= flags else "scalar")


@pytest.mark.skipif(not HAS_ENGINE, reason="this build has no libtorch")
def test_the_basics_work_and_the_exit_code_says_so(report):
    rows = rows_of(report)
    assert rows["backends", "loopback"]["state"] == "ok"
    assert rows["libraries", "libtorch"]["state"] == "ok"
    assert json.loads(report.stdout)["basics_work"] is True
    assert report.returncode == 0
    assert report.stderr == ""


@pytest.mark.skipif(not HAS_ENGINE, reason="this build has no libtorch")
def test_mpi_really_starts_where_it_was_built(report):
    rows = rows_of(report)
    if rows["build", "MPI backend"]["state"] != "ok" or shutil.which("mpirun") is None:
        assert rows["backends", "mpi"]["state"] == "missing"
        assert "apt-get install" in rows["backends", "mpi"]["fix"]
    else:
        assert rows["backends", "mpi"]["state"] == "ok", rows["backends", "mpi"]
        assert "2 ranks" in rows["backends", "mpi"]["value"]


@pytest.mark.skipif(not HAS_ENGINE, reason="this build has no libtorch")
def test_a_machine_without_mpirun_is_told_what_to_install():
    rows = rows_of(run("report", "--json", env={"PATH": "/nonexistent"}))
    assert rows["backends", "mpi"]["state"] == "missing"
    assert "apt-get install" in rows["backends", "mpi"]["fix"]


@pytest.mark.skipif(not HAS_ENGINE or shutil.which("mpirun") is None, reason="this build or machine has no MPI")
def test_mpi_is_checked_as_the_launcher_starts_it(report, tmp_path):
    """Containers have no ssh, which mpirun alone asks for even where all ranks are here; a job's own variables do not count."""
    for folder in ("/usr/bin", "/bin", "/usr/local/bin"):
        for program in Path(folder).iterdir():
            if program.name not in ("ssh", "rsh") and not (tmp_path / program.name).exists():
                (tmp_path / program.name).symlink_to(program)
    bare = run("report", "--json", env={"PATH": str(tmp_path), "RANK": "1", "WORLD_SIZE": "8", "LOCAL_RANK": "1"})
    assert rows_of(bare)["backends", "mpi"] == rows_of(report)["backends", "mpi"]


def test_text_says_the_same_as_json(report):
    text = run("report")
    assert text.returncode == report.returncode
    for (section, name), row in rows_of(report).items():
        assert f"\n{section}\n" in text.stdout
        line = next(line for line in text.stdout.splitlines() if re.match(rf"  \S+ +{re.escape(name)}  ", line))
        assert line.startswith({"ok": "  OK ", "missing": "  -- ", "failed": "  FAIL "}[row["state"]])
    columns = {line.index(name) for (_, name) in rows_of(report) for line in text.stdout.splitlines()
               if re.match(rf"  (OK|--|FAIL) +{re.escape(name)}  ", line)}
    assert columns == {8}, "names are aligned"


def test_a_missing_engine_is_a_row_with_its_fix(tmp_path):
    shutil.copy2(BIN / "capstan", tmp_path / "capstan")
    result = run("report", "--json", program=tmp_path / "capstan")
    row = rows_of(result)["libraries", "capstan-engine"]
    assert row["state"] == "failed"
    assert str(tmp_path / "capstan-engine") in row["value"]
    assert "make build" in row["fix"]
    assert result.returncode == 1


def test_an_engine_that_crashes_is_a_row_and_not_the_end(tmp_path):
    shutil.copy2(BIN / "capstan", tmp_path / "capstan")
    (tmp_path / "capstan-engine").write_text("#!/bin/sh\necho 'error while loading libtorch_cpu.so' >&2\nkill -SEGV $$\n")
    (tmp_path / "capstan-engine").chmod(0o755)
    result = run("report", "--json", program=tmp_path / "capstan")
    row = rows_of(result)["libraries", "libtorch"]
    assert row["state"] == "failed"
    assert "error while loading libtorch_cpu.so" in row["value"]
    assert result.returncode == 1


def test_a_folder_is_measured_and_left_empty(tmp_path):
    rows = rows_of(run("report", "--json", "--folder", tmp_path))
    rates = [row for (section, _), row in rows.items() if section == "folder" and row.get("unit") == "GB/s"]
    assert len(rates) == 2
    assert all(row["number"] > 0 and "x plain" in row["value"] for row in rates)
    assert rows["folder", "free space"]["number"] > 0
    assert rows["folder", "direct I/O"]["state"] in STATES
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [("report",), ("bench", "io")])
def test_a_folder_that_does_not_exist_is_a_user_error(command, tmp_path):
    result = run(*command, "--folder", tmp_path / "none")
    assert result.returncode == 2
    assert f"mkdir -p {tmp_path / 'none'}" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("command", [("report",), ("bench", "io")])
def test_a_file_is_not_a_folder(command, tmp_path):
    (tmp_path / "file").write_text("x")
    result = run(*command, "--folder", tmp_path / "file")
    assert result.returncode == 2
    assert "is not a folder" in result.stderr


def unwritable_folder(tmp_path):
    """For root, permissions are no obstacle; /proc is one for everybody."""
    if os.geteuid() == 0:
        return Path("/proc")
    tmp_path.chmod(0o555)
    return tmp_path


@pytest.mark.parametrize("command", [("report",), ("bench", "io", "--bytes", "1MiB")])
def test_a_folder_that_cannot_be_written_is_a_user_error(command, tmp_path):
    folder = unwritable_folder(tmp_path)
    result = run(*command, "--folder", folder)
    assert result.returncode == 2
    assert str(folder) in result.stderr
    assert "fix:" in result.stderr


def test_bench_io_prints_each_path_with_its_ratio(tmp_path):
    result = run("bench", "io", "--folder", tmp_path, "--bytes", "8MiB", "--rounds", "2")
    assert result.returncode == 0, result.stderr
    assert re.search(r"^plain pread and pwrite +\d+\.\d+ +1\.00 +\d+\.\d+ +1\.00$", result.stdout, re.M)
    assert re.search(r"^threads +\d+\.\d+ +\d+\.\d+ +\d+\.\d+ +\d+\.\d+$", result.stdout, re.M)
    assert re.search(r"^io_uring +(\d+\.\d+ +\d+\.\d+ +\d+\.\d+ +\d+\.\d+|not available: .*)$", result.stdout, re.M)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("args", [("--bytes", "0"), ("--bytes", "-1"), ("--bytes", "1x"), ("--queue-depth", "0"),
                                  ("--rounds", "0"), ("--bytes", "99999999999999999999")])
def test_bench_io_refuses_numbers_that_make_no_sense(args, tmp_path):
    result = run("bench", "io", "--folder", tmp_path, *args)
    assert result.returncode == 2
    assert args[0] in result.stderr


def test_bench_io_needs_a_folder():
    result = run("bench", "io")
    assert result.returncode == 2
    assert "--folder" in result.stderr

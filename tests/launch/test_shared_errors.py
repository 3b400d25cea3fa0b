"""An error that all ranks share is told once, by one of them."""

import re

import pytest

from launching import PYTHON, Job, clean_environment, launch

# Each rank says what it has to and leaves when all have.
TOGETHER = """
import atexit, os, pathlib, sys, time
rank = int(os.environ["RANK"])
def wait_for_all():
    sys.stderr.flush()
    pathlib.Path(f"said{rank}").touch()
    while not all(pathlib.Path(f"said{r}").exists() for r in range(3)):
        time.sleep(0.01)
atexit.register(wait_for_all)
"""


def run(tmp_path, body, *flags):
    (tmp_path / "s.py").write_text(TOGETHER + body)
    return launch("-n", 3, *flags, "s.py", cwd=tmp_path, env=clean_environment(CAPSTAN_PYTHON=PYTHON))


@pytest.mark.parametrize("flags", [["--launcher", "local"], ["--launcher", "ssh"], ["--launcher", "local", "--no_prefix"]], ids=" ".join)
def test_one_traceback_for_all_ranks(tmp_path, flags):
    job = run(tmp_path, "raise ValueError('for all,\\n  in two lines')\n", *flags)
    assert job.code == 1
    assert job.err.count("Traceback") == 1 and job.err.count("ValueError: for all,") == 1, job.err
    assert "capstan: 2 other ranks said the same\n" in job.err or "says the same as another rank" in job.err
    assert re.fullmatch(r"capstan: rank \d exited with code 1; the other ranks were stopped", job.err.splitlines()[-1])


def test_errors_that_differ_are_all_told(tmp_path):
    job = run(tmp_path, "raise ValueError(f'of number {rank}')\n", "--launcher", "local")
    assert job.code == 1 and job.err.count("Traceback") >= 3 and "said the same" not in job.err
    assert all(f"[rank {rank}] ValueError: of number {rank}\n" in job.err for rank in range(3)), job.err


def test_a_rank_is_named_once(tmp_path):
    """PyTorch puts "[rank0]: " before the lines of a traceback."""
    said = ["Traceback (most recent call last):", "  File x", "", "ValueError: no"]
    body = f"for line in {said!r}: print(f'[rank{{rank}}]: {{line}}', file=sys.stderr)\nos._exit(wait_for_all() or 1)\n"
    job = run(tmp_path, body, "--launcher", "local")
    assert "[rank0]" not in job.err and "[rank1]" not in job.err and job.err.count("Traceback") == 1, job.err
    assert re.match("".join(rf"\[rank (\d)\] {re.escape(line)}\n" for line in said), job.err), job.err


def test_a_traceback_of_a_program_that_goes_on_is_shown_meanwhile(tmp_path):
    """The script ends only when its traceback has been read."""
    body = "import traceback\ntry: 1 / 0\nexcept ZeroDivisionError: traceback.print_exc()\n" \
           "while not pathlib.Path('read').exists(): time.sleep(0.01)\n"
    (tmp_path / "s.py").write_text(TOGETHER + body)
    job = Job("-n", 3, "--launcher", "local", "s.py", cwd=tmp_path, env=clean_environment(CAPSTAN_PYTHON=PYTHON))
    try:
        seen = b""
        while b"ZeroDivisionError: division by zero" not in seen or seen.count(b"says the same") < 2:
            chunk = job.process.stderr.read1(4096)
            assert chunk, seen
            seen += chunk
        (tmp_path / "read").touch()
        job.finish()
        assert job.code == 0 and seen.count(b"Traceback") == 1 and job.err == "", (seen, job.err)
    finally:
        job.kill_rest()

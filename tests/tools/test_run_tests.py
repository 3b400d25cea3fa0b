"""The test runner itself: it must not call a broken run a good one."""

import subprocess
import sys
from pathlib import Path

import pytest

from load_tool import SOURCE

CASE = '<testcase name="{}" status="run" result="{}" classname="Suite">{}</testcase>'
GOOD = CASE.format("Works", "completed", "")
BAD = CASE.format("Breaks", "completed", '<failure message="1 is not 2"/>')
SKIPPED = CASE.format("NeedsGpu", "skipped", '<skipped message="a_test.cpp:7&#x0A;this machine has no GPU"/>')
SILENT = CASE.format("Silent", "skipped", '<skipped message="a_test.cpp:7&#x0A;"/>')


def program(*cases, then="exit 0"):
    """A stand-in for a GoogleTest program: writes its result file, says something, ends as told."""
    body = "<testsuites><testsuite>" + "".join(cases) + "</testsuite></testsuites>"
    write = f"cat > \"$out\" <<'XML'\n{body}\nXML\n" if cases else ""
    return f'#!/bin/sh\nout="${{2#--gtest_output=xml:}}"\n{write}echo "output of $0"\n{then}\n'


@pytest.fixture
def run(tmp_path):
    def run_programs(programs, timeout=20, jobs=2, marks=None):
        (tmp_path / "bin").mkdir()
        for name, text in programs.items():
            path = tmp_path / "bin" / name
            path.write_text(text)
            path.chmod(0o755)
        (tmp_path / "tests.txt").write_text("".join(f"stand_in {name} {(marks or {}).get(name, '')}\n" for name in programs))
        done = subprocess.run(
            [sys.executable, str(SOURCE / "tools/run_tests.py"), "--python", sys.executable, "--build",
             str(tmp_path), "--folder", "stand_in", "--timeout", str(timeout), "--jobs", str(jobs)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode, done.stdout
    return run_programs


def last_line(output):
    return output.splitlines()[-1]


def test_a_good_run_ends_with_the_counts_and_lists_each_skip_with_its_reason(run):
    code, output = run({"a_test": program(GOOD, SKIPPED), "b_test": program(GOOD)})
    assert code == 0
    assert last_line(output) == "2 passed, 0 failed, 1 skipped"
    assert "Suite.NeedsGpu\n      this machine has no GPU\n" in output


def test_a_failing_test_fails_the_run_and_is_named(run):
    code, output = run({"a_test": program(GOOD, BAD, then="exit 1")})
    assert code != 0
    assert last_line(output) == "1 passed, 1 failed, 0 skipped"
    assert "Suite.Breaks\n      1 is not 2" in output


def test_a_crash_counts_as_a_failure_and_shows_the_output(run):
    code, output = run({"a_test": program(GOOD), "b_test": program(then="kill -SEGV $$")})
    assert code != 0
    assert last_line(output) == "1 passed, 1 failed, 0 skipped"
    assert "ended with signal SIGSEGV" in output and "| output of" in output


def test_a_crash_after_the_results_were_written_is_still_a_failure(run):
    code, output = run({"a_test": program(GOOD, then="exit 3")})
    assert code != 0
    assert last_line(output) == "1 passed, 1 failed, 0 skipped"


def test_a_hang_is_stopped_with_all_it_started(run, tmp_path):
    mark = tmp_path / "child_pid"
    code, output = run({"a_test": program(then=f"sleep 1000 & echo $! > {mark}; wait")}, timeout=2)
    assert code != 0
    assert last_line(output) == "0 passed, 1 failed, 0 skipped"
    assert "not finished after 2 s" in output
    status = Path("/proc", mark.read_text().strip(), "stat")  # gone, or a zombie that nobody collects
    assert not status.exists() or status.read_text().split(") ")[1][0] == "Z"


def test_a_program_that_was_not_built_is_a_failure(run, tmp_path):
    code, output = run({"a_test": program(GOOD), "b_test": "", "c_test": program(GOOD)})
    assert code != 0
    assert last_line(output) == "2 passed, 1 failed, 0 skipped"
    assert "could not be started" in output


def test_a_program_without_tests_is_a_failure(run):
    code, output = run({"a_test": program("")})
    assert code != 0 and "ran no test" in output


def test_a_skip_without_a_reason_is_a_failure(run):
    code, output = run({"a_test": program(GOOD, SILENT)})
    assert code != 0 and "skipped without a reason" in output


def test_as_many_run_side_by_side_as_asked(run, tmp_path):
    def meet(mine, other):
        return f"touch {tmp_path}/{mine}; for i in $(seq 200); do [ -e {tmp_path}/{other} ] && exit 0; sleep 0.1; done; exit 1"
    code, output = run({"a_test": program(GOOD, then=meet("a", "b")), "b_test": program(GOOD, then=meet("b", "a"))}, timeout=60)
    assert code == 0, output


def test_one_that_is_marked_has_nothing_beside_it(run, tmp_path):
    (tmp_path / "meeting").mkdir()
    stay = f"mkdir {tmp_path}/meeting/$(basename $0); sleep 1; rmdir {tmp_path}/meeting/$(basename $0)"
    look = f"sleep 0.5; ls {tmp_path}/meeting; [ $(ls {tmp_path}/meeting | wc -l) = 0 ]"
    names = ["a_test", "b_test", "c_test", "d_test"]
    code, output = run({name: program(GOOD, then=look if name == "b_test" else stay) for name in names}, timeout=60, jobs=3,
                       marks={"b_test": "alone"})
    assert code == 0, output
    assert [line.split()[1].split("/")[1] for line in output.splitlines() if line.startswith("ok")][-1] == "b_test"


def test_nothing_to_run_is_a_failure(run):
    code, output = run({})
    assert code != 0 and last_line(output) == "0 passed, 0 failed, 0 skipped"

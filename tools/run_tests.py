#!/usr/bin/env python3
"""Runs the tests of one or more build trees and ends with the line `N passed, M failed, K skipped`.

    tools/run_tests.py --python PYTHON --build build/release [--also build/asan] [--folder comm]

GoogleTest programs come from <build>/tests.txt (lines `folder program`), pytest suites are the folders
of tests/ that hold test_*.py. They run one after another: many start several ranks of their own.
A program that crashes, hangs, or runs no test counts as one failure and its output is shown; so does
a skip that gives no reason.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

PYTEST_NO_TESTS = 5  # its exit code when nothing was collected
ROOT = Path(__file__).resolve().parent.parent
REASON_LINES = 12  # of one failed test's message in the summary
TAIL_LINES = 60  # of a failed program's output, on the terminal; the whole of it is in the log


@dataclass
class Job:
    name: str
    command: list
    log: Path
    results: Path  # JUnit XML, which GoogleTest and pytest both write
    environment: dict


@dataclass
class Outcome:
    passed: int = 0
    failed: list = field(default_factory=list)   # (test, reason)
    skipped: list = field(default_factory=list)  # (test, reason)
    seconds: float = 0.0


def test_folders(folder):
    """Folders under tests/ (and python/tests) that hold pytest files."""
    found = {p.parent for top in ("tests", "python/tests") for p in (ROOT / top).rglob("test_*.py")}
    return sorted(p for p in found if not folder or folder in p.relative_to(ROOT).parts)


def environment(build, python):
    env = dict(os.environ)
    env.update(CAPSTAN_BIN=str(build / "bin"), CAPSTAN_PYTHON=python, CAPSTAN_SOURCE=str(ROOT),
               PYTHONDONTWRITEBYTECODE="1",
               PYTHONPATH=os.pathsep.join([str(build / "python"), *filter(None, [os.environ.get("PYTHONPATH")])]))
    # Tests ask for more memory than there is, to see the error: an allocation may fail under asan as well.
    env.setdefault("ASAN_OPTIONS", "allocator_may_return_null=1")
    env.setdefault("LSAN_OPTIONS", f"suppressions={ROOT}/tools/lsan.supp:print_suppressions=0")
    env.setdefault("TSAN_OPTIONS", f"suppressions={ROOT}/tools/tsan.supp:halt_on_error=1:allocator_may_return_null=1")
    return env


def program_jobs(build, folder, python, out, listed="tests.txt"):
    """One job per GoogleTest program that a file of the build tree lists: `folder program [filter]`."""
    jobs = []
    for line in (build / listed).read_text().splitlines():
        owner, program, *chosen = line.split()
        if folder and owner.split("/")[0] != folder:
            continue
        stem = f"{build.name}-{program}"
        results = out / f"{stem}.xml"
        command = [str(build / "bin" / program), "--gtest_color=no", f"--gtest_output=xml:{results}"]
        command += [f"--gtest_filter={tests}" for tests in chosen]
        jobs.append(Job(f"{build.name}/{program}", command, out / f"{stem}.log", results,
                        environment(build, python)))
    return jobs


def pytest_jobs(build, folder, python, out):
    jobs = []
    for path in test_folders(folder):
        name = str(path.relative_to(ROOT))
        stem = "pytest-" + name.replace("/", "-")
        results = out / f"{stem}.xml"
        files = [str(p) for p in sorted(path.glob("test_*.py"))]
        command = [python, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--import-mode=importlib",
                   f"--rootdir={ROOT}", f"--junitxml={results}", *files]
        jobs.append(Job(f"pytest {name}", command, out / f"{stem}.log", results, environment(build, python)))
    return jobs


def stop_group(process):
    """Ends the program and everything it started that stayed in its session's process group."""
    for number, grace in ((signal.SIGTERM, 5), (signal.SIGKILL, 30)):
        try:
            os.killpg(process.pid, number)
            process.wait(grace)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def execute(job, timeout):
    """Returns the exit code, or None when the program had to be stopped."""
    job.results.unlink(missing_ok=True)
    with open(job.log, "wb") as log:
        process = subprocess.Popen(job.command, cwd=ROOT, env=job.environment, stdin=subprocess.DEVNULL,
                                   stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            stop_group(process)


def skip_reason(element):
    """The reason of a <skipped> element; GoogleTest puts `file:line` before it."""
    text = (element.get("message") or element.text or "").strip()
    lines = [line for line in text.splitlines() if line.strip()]
    if lines and ":" in lines[0] and lines[0].rsplit(":", 1)[1].strip().isdigit():
        lines = lines[1:]
    reason = " ".join(line.strip() for line in lines)
    return "" if reason in ("Skipped", "unconditional skip") else reason


def read_results(job, outcome):
    for case in ElementTree.parse(job.results).getroot().iter("testcase"):
        name = f"{job.name}: {case.get('classname', '')}.{case.get('name')}"
        problems = [e for e in case if e.tag in ("failure", "error")]
        skip = case.find("skipped")
        if problems:
            text = problems[0].get("message") or problems[0].text or ""
            outcome.failed.append((name, text.strip().splitlines()[:REASON_LINES]))
        elif skip is not None or case.get("result") == "skipped":
            reason = skip_reason(skip) if skip is not None else ""
            if reason:
                outcome.skipped.append((name, reason))
            else:
                outcome.failed.append((name, ["skipped without a reason"]))
        elif case.get("status", "run") == "run":
            outcome.passed += 1


def run_job(job, timeout):
    started = time.monotonic()
    outcome = Outcome()
    try:
        code = execute(job, timeout)
    except OSError as error:
        outcome.failed.append((job.name, [f"could not be started: {error}"]))
        return outcome
    outcome.seconds = time.monotonic() - started
    try:
        read_results(job, outcome)
    except (OSError, ElementTree.ParseError):
        pass  # no readable result: told below from the exit code
    if code is None:
        outcome.failed.append((job.name, [f"stopped: not finished after {timeout} s"]))
    elif code == PYTEST_NO_TESTS and outcome.skipped:
        pass  # a whole file was skipped, with its reason
    elif code != 0 and not outcome.failed:
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        outcome.failed.append((job.name, [f"ended with {how}"]))
    elif not (outcome.passed or outcome.failed or outcome.skipped):
        outcome.failed.append((job.name, ["ran no test"]))
    return outcome


def show(job, outcome):
    state = "FAILED" if outcome.failed else "ok"
    counts = f"{outcome.passed} passed, {len(outcome.failed)} failed, {len(outcome.skipped)} skipped"
    print(f"{state:6}  {job.name:40}  {counts} in {outcome.seconds:.1f} s", flush=True)
    if outcome.failed:
        lines = job.log.read_text(errors="replace").splitlines()
        if len(lines) > TAIL_LINES:
            print(f"    | ... {len(lines) - TAIL_LINES} earlier lines are in {job.log}")
        for line in lines[-TAIL_LINES:]:
            print(f"    | {line}")


def summarize(outcomes):
    """Prints skips, failures, the slowest programs and the last line; returns the exit code."""
    skipped = [item for _, o in outcomes for item in o.skipped]
    failed = [item for _, o in outcomes for item in o.failed]
    passed = sum(o.passed for _, o in outcomes)
    if skipped:
        print(f"\nSkipped ({len(skipped)}):")
        for name, reason in skipped:
            print(f"  {name}\n      {reason}")
    if failed:
        print(f"\nFailed ({len(failed)}):")
        for name, reason in failed:
            print("\n      ".join([f"  {name}", *reason]))
    print("\nSlowest:")
    for job, o in sorted(outcomes, key=lambda item: -item[1].seconds)[:8]:
        print(f"  {o.seconds:7.1f} s  {job.name}")
    print(f"  {sum(o.seconds for _, o in outcomes):7.1f} s  in all\n")
    print(f"{passed} passed, {len(failed)} failed, {len(skipped)} skipped", flush=True)
    return 1 if failed or not passed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", required=True, help="the interpreter that has torch and pytest")
    parser.add_argument("--build", type=Path, required=True, help="build tree for programs and pytest")
    parser.add_argument("--also", type=Path, action="append", default=[], help="tree of which only programs are run")
    parser.add_argument("--reduced", type=Path, action="append", default=[], help="tree of which its reduced.txt is run")
    parser.add_argument("--programs-only", action="store_true", help="no pytest")
    parser.add_argument("--folder", default="", help="only the tests of this folder")
    parser.add_argument("--repeat", type=int, default=1, help="how often everything is run")
    parser.add_argument("--timeout", type=int, default=900, help="seconds for one program")
    options = parser.parse_args()
    # A shell lets what it starts in the background ignore these, and every program below would inherit that:
    # tests that press Ctrl-C would then wait for ranks that do not hear it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    build = options.build.resolve()
    out = build / "test_results"
    out.mkdir(exist_ok=True)
    jobs = program_jobs(build, options.folder, options.python, out)
    for tree in options.also:
        jobs += program_jobs(tree.resolve(), options.folder, options.python, out)
    for tree in options.reduced:
        jobs += program_jobs(tree.resolve(), options.folder, options.python, out, "reduced.txt")
    if not options.programs_only:
        jobs += pytest_jobs(build, options.folder, options.python, out)
    outcomes = []
    for job in jobs * options.repeat:
        outcome = run_job(job, options.timeout)
        show(job, outcome)
        outcomes.append((job, outcome))
    return summarize(outcomes)


if __name__ == "__main__":
    sys.exit(main())

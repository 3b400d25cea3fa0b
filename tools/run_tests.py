#!/usr/bin/env python3
"""Runs the tests of one or more build trees and ends with the line `N passed, M failed, K skipped`.

    tools/run_tests.py --python PYTHON --build build/release [--reduced build/asan_torch] [--folder comm]

GoogleTest programs come from <build>/tests.txt (lines `folder program [filter] [alone]`), pytest suites are
the folders of tests/ that hold test_*.py, in parts of a few files. As many run side by side as there are
cores, the longest first (tools/test_seconds.txt says how long each takes; --record writes it); what is marked
`alone`, because it measures something that neighbours would disturb, runs by itself at the end.
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
SECONDS = ROOT / "tools" / "test_seconds.txt"
USUAL_SECONDS = 10  # more than a job takes that is not in that file
PYTEST_FILES = 8  # in one job: each job imports torch anew, and a long one keeps a core busy at the end
ALONE = "# run_tests: alone"  # in a pytest file, as `ALONE` in capstan_test()


@dataclass
class Job:
    name: str
    command: list
    log: Path
    results: Path  # JUnit XML, which GoogleTest and pytest both write
    environment: dict
    alone: bool = False  # nothing else runs beside it


@dataclass
class Outcome:
    passed: int = 0
    failed: list = field(default_factory=list)   # (test, reason)
    skipped: list = field(default_factory=list)  # (test, reason)
    seconds: float = 0.0
    cpu_seconds: float = 0.0  # of all that it started and waited for


def test_folders(folder):
    """Folders under tests/ (and python/tests) that hold pytest files."""
    found = {p.parent for top in ("tests", "python/tests") for p in (ROOT / top).rglob("test_*.py")}
    return sorted(p for p in found if not folder or folder in p.relative_to(ROOT).parts)


def environment(build, python):
    env = dict(os.environ)
    env.update(CAPSTAN_BIN=str(build / "bin"), CAPSTAN_PYTHON=python, CAPSTAN_SOURCE=str(ROOT),
               PYTHONDONTWRITEBYTECODE="1",
               PYTHONPATH=os.pathsep.join([str(build / "python"), *filter(None, [os.environ.get("PYTHONPATH")])]))
    # OpenMP's threads spin for each other as if every core were theirs; beside another job they had better sleep.
    env.setdefault("OMP_WAIT_POLICY", "passive")
    # Tests ask for more memory than there is, to see the error: an allocation may fail under asan as well.
    env.setdefault("ASAN_OPTIONS", "allocator_may_return_null=1")
    env.setdefault("LSAN_OPTIONS", f"suppressions={ROOT}/tools/lsan.supp:print_suppressions=0")
    env.setdefault("TSAN_OPTIONS", f"suppressions={ROOT}/tools/tsan.supp:halt_on_error=1:allocator_may_return_null=1")
    return env


def program_jobs(build, folder, python, out, listed="tests.txt"):
    """One job per line of a file of the build tree: `folder program [filter] [alone]`."""
    jobs = []
    for line in (build / listed).read_text().splitlines():
        owner, program, *rest = line.split()
        if folder and owner.split("/")[0] != folder:
            continue
        alone = "alone" in rest
        chosen = [word for word in rest if word != "alone"]
        name = f"{build.name}/{program}" + (" alone" if alone else "")
        stem = name.replace("/", "-").replace(" ", "-")
        results = out / f"{stem}.xml"
        command = [str(build / "bin" / program), "--gtest_color=no", f"--gtest_output=xml:{results}"]
        command += [f"--gtest_filter={tests}" for tests in chosen]
        jobs.append(Job(name, command, out / f"{stem}.log", results, environment(build, python), alone))
    return jobs


def pytest_parts(path):
    """Names and files of the jobs of one folder: several of about the same length, and one per file that is alone."""
    files = sorted(path.glob("test_*.py"))
    alone = [p for p in files if ALONE in p.read_text(errors="replace").splitlines()]
    others = sorted((p for p in files if p not in alone), key=lambda p: -p.stat().st_size)
    count = -(-len(others) // PYTEST_FILES)
    name = str(path.relative_to(ROOT))
    for i in range(count):
        yield name if count == 1 else f"{name} {i + 1}", others[i::count], False
    for p in alone:
        yield str(p.relative_to(ROOT)), [p], True


def pytest_jobs(build, folder, python, out):
    jobs = []
    for path in test_folders(folder):
        for name, files, alone in pytest_parts(path):
            stem = "pytest-" + name.replace("/", "-").replace(" ", "-")
            results = out / f"{stem}.xml"
            command = [python, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--import-mode=importlib",
                       f"--rootdir={ROOT}", f"--junitxml={results}", *map(str, sorted(files))]
            jobs.append(Job(f"pytest {name}", command, out / f"{stem}.log", results, environment(build, python), alone))
    return jobs


def known_seconds():
    if not SECONDS.exists():
        return {}
    return {name: float(seconds) for seconds, name in (line.split(None, 1) for line in SECONDS.read_text().splitlines())}


class Running:
    """A job that was started. Whoever starts it polls it until it has ended, or stops it."""

    def __init__(self, job, timeout):
        self.job, self.timeout = job, timeout
        self.started = time.monotonic()
        job.results.unlink(missing_ok=True)
        with open(job.log, "wb") as log:
            self.process = subprocess.Popen(job.command, cwd=ROOT, env=job.environment, stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    def poll(self):
        """The outcome once it has ended; a job that takes too long is stopped."""
        outcome = Outcome(seconds=time.monotonic() - self.started)
        pid, status, used = os.wait4(self.process.pid, os.WNOHANG)
        if pid:
            self.process.returncode = os.waitstatus_to_exitcode(status)
            outcome.cpu_seconds = used.ru_utime + used.ru_stime
        elif outcome.seconds < self.timeout:
            return None
        self.stop()
        judge(self.job, self.process.returncode if pid else None, outcome, self.timeout)
        return outcome

    def stop(self):
        """Ends the program and everything it started that stayed in its session's process group."""
        for number, grace in ((signal.SIGTERM, 5), (signal.SIGKILL, 30)):
            try:
                os.killpg(self.process.pid, number)
                self.process.wait(grace)
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue


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


def judge(job, code, outcome, timeout):
    """Fills in what a job's results and its exit code say; code is None when it had to be stopped."""
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


def run_all(jobs, slots, timeout):
    """Runs every job once, `slots` side by side; yields each with its outcome as it ends."""
    known = known_seconds()
    waiting = sorted(jobs, key=lambda job: (job.alone, -known.get(job.name, USUAL_SECONDS)))
    running = []
    try:
        while waiting or running:
            while waiting and len(running) < (1 if waiting[0].alone else slots):
                job = waiting.pop(0)
                try:
                    running.append(Running(job, timeout))
                except OSError as error:
                    yield job, Outcome(failed=[(job.name, [f"could not be started: {error}"])])
            for one in list(running):
                outcome = one.poll()
                if outcome:
                    running.remove(one)
                    yield one.job, outcome
            time.sleep(0.05)
    finally:
        for one in running:
            one.stop()


def show(job, outcome):
    state = "FAILED" if outcome.failed else "ok"
    counts = f"{outcome.passed} passed, {len(outcome.failed)} failed, {len(outcome.skipped)} skipped"
    print(f"{state:6}  {job.name:40}  {counts} in {outcome.seconds:.1f} s, {outcome.cpu_seconds:.1f} s of CPU", flush=True)
    if outcome.failed:
        lines = job.log.read_text(errors="replace").splitlines()
        if len(lines) > TAIL_LINES:
            print(f"    | ... {len(lines) - TAIL_LINES} earlier lines are in {job.log}")
        for line in lines[-TAIL_LINES:]:
            print(f"    | {line}")


def summarize(outcomes, seconds):
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
    print(f"  {seconds:7.1f} s  in all, {sum(o.cpu_seconds for _, o in outcomes):.1f} s of CPU\n")
    print(f"{passed} passed, {len(failed)} failed, {len(skipped)} skipped", flush=True)
    return 1 if failed or not passed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", required=True, help="the interpreter that has torch and pytest")
    parser.add_argument("--build", type=Path, required=True, help="build tree for programs and pytest")
    parser.add_argument("--reduced", type=Path, action="append", default=[], help="tree of which its reduced.txt is run")
    parser.add_argument("--programs-only", action="store_true", help="no pytest")
    parser.add_argument("--folder", default="", help="only the tests of this folder")
    parser.add_argument("--repeat", type=int, default=1, help="how often everything is run")
    parser.add_argument("--timeout", type=int, default=1800, help="seconds for one program")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="how many run side by side")
    parser.add_argument("--record", action="store_true", help=f"write {SECONDS.relative_to(ROOT)}")
    options = parser.parse_args()
    # A shell lets what it starts in the background ignore these, and every program below would inherit that:
    # tests that press Ctrl-C would then wait for ranks that do not hear it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    build = options.build.resolve()
    out = build / "test_results"
    out.mkdir(exist_ok=True)
    jobs = program_jobs(build, options.folder, options.python, out)
    for tree in options.reduced:
        jobs += program_jobs(tree.resolve(), options.folder, options.python, out, "reduced.txt")
    if not options.programs_only:
        jobs += pytest_jobs(build, options.folder, options.python, out)
    outcomes, started = [], time.monotonic()
    for _ in range(options.repeat):
        for job, outcome in run_all(jobs, options.jobs, options.timeout):
            show(job, outcome)
            outcomes.append((job, outcome))
    if options.record:
        long = [(o.seconds, job.name) for job, o in outcomes if o.seconds > USUAL_SECONDS]
        SECONDS.write_text("".join(f"{seconds:4.0f} {name}\n" for seconds, name in sorted(long, reverse=True)))
    return summarize(outcomes, time.monotonic() - started)


if __name__ == "__main__":
    sys.exit(main())

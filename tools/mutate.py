#!/usr/bin/env python3
"""Breaks one promise at a time in a scratch copy and tells which tests notice; the table goes to docs/campaigns.md.

    tools/mutate.py [--only WORD …] [--list] [--scratch build/mutants | --here]

tools/mutations.txt holds the mutations:

    [name] what is broken
    a/file.cpp
    - the text that is there, once; any white space in it stands for any
    + what takes its place (may be missing; each of the two may be several lines)
    ? a_test A.Filter             the GoogleTest program and the tests that must fail
    ? tests/x/test_y.py::test_z   or what pytest shall run

An edit whose text is not there any more is reported, and so is a test that fails without it: neither says anything
about the tests. --here changes this very tree, for a copy of the project that nobody else uses; an edit is taken back
even when this program is interrupted.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tools" / "mutations.txt"
RECORD = ROOT / "docs" / "campaigns.md"
BEGIN, END = "<!-- mutations -->", "<!-- end of mutations -->"
TIMEOUT = 600  # seconds for one test; one that hangs has noticed


@dataclass
class Mutation:
    name: str
    what: str
    file: str = ""
    old: list = field(default_factory=list)
    new: list = field(default_factory=list)
    tests: list = field(default_factory=list)

    @property
    def folder(self):
        parts = Path(self.file).parts
        return parts[1] if parts[0] == "capstan" else "python"


def read_list(text):
    mutations = []
    for number, line in enumerate(text.splitlines(), 1):
        if head := re.fullmatch(r"\[([\w-]+)\] (.+)", line):
            mutations.append(Mutation(*head.groups()))
        elif line[:1] in "-+?" and line[1:2] in ("", " ") and line:
            {"-": mutations[-1].old, "+": mutations[-1].new, "?": mutations[-1].tests}[line[0]].append(line[2:])
        elif line and not line.startswith("#"):
            if not mutations or mutations[-1].file:
                raise SystemExit(f"{LIST.name}:{number}: what is this line? {line}")
            mutations[-1].file = line
    return mutations


def edited(text, mutation):
    """The text with the edit in it, or why that cannot be made."""
    words = " ".join(mutation.old).split()
    found = list(re.finditer(r"\s+".join(map(re.escape, words)), text))
    if len(found) != 1:
        return None, "its text is not there any more" if not found else f"its text is there {len(found)} times"
    return text[:found[0].start()] + "\n".join(mutation.new) + text[found[0].end():], ""


def copy_project(scratch):
    """Makes `scratch` hold our files as they are now; what has not changed keeps its time, so little is built anew."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard"], stdout=subprocess.PIPE,
                            text=True, check=True).stdout.splitlines()
    names = {name for name in listed if (ROOT / name).is_file()}
    for name in names:
        target = scratch / name
        if not target.exists() or target.read_bytes() != (ROOT / name).read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)
            shutil.copymode(ROOT / name, target)
    known = scratch / ".mutants"
    for name in set(known.read_text().splitlines() if known.exists() else []) - names:
        (scratch / name).unlink(missing_ok=True)
    known.write_text("\n".join(sorted(names)))


class Project:
    """A tree in which things are built and run."""

    def __init__(self, root, python):
        self.root, self.python = root, python
        self.build = root / "build" / "release"
        self.sound = {}  # test: whether it passes as things are

    def make(self, mutation):
        """Builds what the mutation's tests run; returns whether that worked."""
        if mutation.file.endswith(".py"):
            try:
                compile((self.root / mutation.file).read_text(), mutation.file, "exec")
            except SyntaxError:
                return False
            return True
        targets = {test.split()[0] for test in mutation.tests if "/" not in test}
        if any("/" in test for test in mutation.tests):
            targets |= {"capstan/cli/all", "tests/launch/all", "capstan_python"}
        done = subprocess.run([self.python, str(self.root / "tools/build.py"), "--python", self.python, *sorted(targets)],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode == 0

    def passes(self, test):
        env = dict(os.environ, CAPSTAN_BIN=str(self.build / "bin"), CAPSTAN_PYTHON=self.python,
                   CAPSTAN_SOURCE=str(self.root), PYTHONPATH=str(self.build / "python"), PYTHONDONTWRITEBYTECODE="1")
        if "/" in test:
            command = [self.python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--import-mode=importlib",
                       f"--rootdir={self.root}", *test.split()]
        else:
            program, chosen = test.split()
            command = [str(self.build / "bin" / program), f"--gtest_filter={chosen}", "--gtest_brief=1"]
        process = subprocess.Popen(command, cwd=self.root, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, start_new_session=True)
        try:
            text = process.communicate(timeout=TIMEOUT)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            return False
        some = "passed" in text if "/" in test else not re.search(r"\b0 tests? from", text)
        return process.returncode == 0 and some

    def try_one(self, mutation):
        """(outcome, by which test): caught, survived, or why it could not be tried."""
        path = self.root / mutation.file
        before = path.read_text() if path.exists() else ""
        after, problem = edited(before, mutation)
        if problem:
            return problem, ""
        for test in mutation.tests:
            if test not in self.sound:
                self.sound[test] = self.make(mutation) and self.passes(test)
            if not self.sound[test]:
                return "a test fails or is missing without the mutation", test
        try:
            path.write_text(after)
            if not self.make(mutation):
                return "does not compile", ""
            for test in mutation.tests:
                if not self.passes(test):
                    return "caught", test
            return "survived", ""
        finally:
            path.write_text(before)


def table(rows, commit):
    caught = sum(outcome == "caught" for _, outcome, _ in rows)
    lines = [BEGIN,
             f"Each breaks one promise in a scratch copy (`tools/mutate.py`). At {commit}: {caught} of {len(rows)} caught.", "",
             "| mutation | folder | caught by | survived |", "|---|---|---|---|"]
    for mutation, outcome, test in rows:
        state = {"caught": "", "survived": "yes"}.get(outcome, f"not tried: {outcome}")
        lines.append(f"| {mutation.what} | {mutation.folder} | {f'`{test}`' if outcome == 'caught' else ''} | {state} |")
    return "\n".join([*lines, END])


def record(text):
    """In the place of the table that is there."""
    page = RECORD.read_text()
    RECORD.write_text(page[:page.index(BEGIN)] + text + page[page.index(END) + len(END):])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has torch and pytest")
    parser.add_argument("--only", action="append", default=[], help="names that contain this, or files")
    parser.add_argument("--list", action="store_true", help="only look whether every edit can be made")
    parser.add_argument("--scratch", type=Path, default=ROOT / "build" / "mutants")
    parser.add_argument("--here", action="store_true", help="mutate this very tree")
    options = parser.parse_args()
    python = os.path.abspath(shutil.which(options.python) or options.python)
    mutations = [m for m in read_list(LIST.read_text())
                 if not options.only or any(word in m.name or word in m.file for word in options.only)]
    if options.list:
        problems = [f"{m.name}: {edited((ROOT / m.file).read_text(), m)[1] if (ROOT / m.file).exists() else 'no file'}"
                    for m in mutations if not (ROOT / m.file).exists() or edited((ROOT / m.file).read_text(), m)[1]]
        print("\n".join([*problems, f"{len(mutations)} mutations, {len(problems)} cannot be made"]))
        return 1 if problems else 0
    root = ROOT if options.here else options.scratch.resolve()
    if not options.here:
        copy_project(root)
    project = Project(root, python)
    rows, began = [], time.monotonic()
    for mutation in sorted(mutations, key=lambda m: m.file):  # those of a folder one after another: less to build
        outcome, test = project.try_one(mutation)
        rows.append((mutation, outcome, test))
        print(f"{outcome:10} {mutation.name:30} {test or mutation.what}", flush=True)
    if not options.only:
        commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, text=True)
        record(table(rows, commit.stdout.strip()))
    counts = {outcome: sum(o == outcome for _, o, _ in rows) for outcome in ("caught", "survived")}
    print(f"{len(rows)} mutations: {counts['caught']} caught, {counts['survived']} survived, "
          f"{len(rows) - sum(counts.values())} not tried, in {(time.monotonic() - began) / 60:.0f} min")
    return 0 if counts["caught"] == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())

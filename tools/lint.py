#!/usr/bin/env python3
"""clang-format and clang-tidy over our sources; a file that passed is not checked again until it changes.

    tools/lint.py --python PYTHON --build build/lint [--fix] [PATH …]

The build tree is only configured, for its compile_commands.json. It joins the sources of a target in one unit of
translation, as the release build does: most of the time goes into libtorch's headers, which are then read once per
target. Both tools come from beside PYTHON, else from PATH. Results are remembered by a hash of the tool's version, the
rules, the compile command, the sources and every header of ours that they reach.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OURS = ("capstan/", "tests/", "benchmarks/", "examples/", "python/")
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


class LintError(Exception):
    pass


def find_tool(name, python):
    beside = Path(python).parent / name
    tool = str(beside) if beside.exists() else shutil.which(name)
    if not tool:
        raise LintError(f"no {name} beside {python} or in PATH\n  fix: leave out SETUP=none, or pip install {name}")
    text = subprocess.run([tool, "--version"], stdout=subprocess.PIPE, text=True).stdout
    version = re.search(r"version (\d+)\.", text)
    if not version or int(version.group(1)) < 16:
        raise LintError(f"{tool} is too old (16 or newer is needed): {text.strip()}")
    return tool, text


def our_files(pattern, paths):
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"],
                            stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    return [n for n in sorted(set(listed)) if n.startswith(OURS) and re.search(pattern, n) and (ROOT / n).exists()
            and (not paths or n.startswith(tuple(paths)))]


def check_format(tool, names, fix):
    if not names:
        return 0
    mode = ["-i"] if fix else ["--dry-run", "-Werror"]
    return 1 if subprocess.run([tool, *mode, *names], cwd=ROOT).returncode else 0


def reachable(name, known):
    """`name` and every file of ours that it includes, directly or not."""
    todo, seen = [name], set()
    while todo:
        current = todo.pop()
        if current in seen or not (ROOT / current).exists():
            continue
        seen.add(current)
        if current not in known:
            text = (ROOT / current).read_bytes()
            beside = os.path.dirname(current)
            names = INCLUDE.findall(text.decode(errors="replace"))
            known[current] = (hashlib.sha256(text).hexdigest(),
                              names + [os.path.normpath(os.path.join(beside, n)) for n in names])
        todo += known[current][1]
    return sorted(seen)


def cache_key(entry, version, names, known):
    folders = {folder for name in names for folder in map(str, Path(name).parents)}
    rules = [ROOT / folder / ".clang-tidy" for folder in sorted(folders)]
    parts = [version, entry.get("command", ""), *[path.read_text() for path in rules if path.exists()]]
    parts += [f"{n} {known[n][0]}" for name in names for n in reachable(name, known)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def sources_of(path):
    """The sources of ours that one unit of translation is made of."""
    paths = [path]
    if not path.name.endswith(".cpp"):  # made by CMake: a list of includes
        paths = [Path(name) for name in INCLUDE.findall(path.read_text())] if path.exists() else []
    names = [str(p.relative_to(ROOT)) for p in paths if p.is_relative_to(ROOT)]
    return [name for name in names if name.startswith(OURS)]


def compile_entries(build, paths):
    commands = build / "compile_commands.json"
    if not commands.exists():
        raise LintError(f"there is no {commands}\n  fix: make lint, which configures the build tree first")
    entries = []  # (compile command, names of the sources)
    for entry in json.loads(commands.read_text()):
        path = Path(entry["directory"], entry["file"])
        names = sources_of(path) if path.suffix in (".cpp", ".cxx") else []
        if any(not paths or name.startswith(tuple(paths)) for name in names):
            entries.append((entry, names))
    return entries


def copy_rules(build):
    """Rules of a folder hold for what CMake makes of it: clang-tidy looks for them above the file that it reads."""
    for rules in our_files(r"(^|/)\.clang-tidy$", []):
        (build / rules).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / rules, build / rules)


def compiler_folder(entry):
    """Where the compiler of this entry keeps its headers; clang by itself takes the newest it finds, whole or not."""
    words = (entry.get("command") or " ".join(entry["arguments"])).split()
    compiler = next(word for word in words if "ccache" not in os.path.basename(word))
    found = subprocess.run([compiler, "-print-libgcc-file-name"], stdout=subprocess.PIPE, text=True).stdout.strip()
    return os.path.dirname(found)


def tidy_one(tool, build, file, gcc):
    # GCC's own flags in the compile command mean nothing to clang, and its headers use what they deprecate.
    done = subprocess.run([tool, "--quiet", "-p", str(build), f"--extra-arg=--gcc-install-dir={gcc}",
                           "--extra-arg=-Wno-unknown-warning-option", "--extra-arg=-Wno-deprecated-declarations",
                           "--extra-arg=-Wno-ignored-optimization-argument", file], cwd=ROOT,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    noise = re.compile(r"^\d+ warnings? (generated|treated)|^Suppressed|^Use -header-filter")
    lines = [line for line in (done.stdout + done.stderr).splitlines() if not noise.match(line)]
    return done.returncode, "\n".join(lines)


def check_tidy(tool, version, build, paths):
    entries = compile_entries(build, paths)
    cache = build / "lint_cache"
    cache.mkdir(exist_ok=True)
    copy_rules(build)
    known, todo = {}, []
    for entry, names in entries:
        mark = cache / cache_key(entry, version, names, known)
        if not mark.exists():
            todo.append((entry, names, mark))
    print(f"clang-tidy: {len(entries) - len(todo)} targets unchanged, {len(todo)} to check", flush=True)
    bad, gcc = 0, compiler_folder(entries[0][0]) if entries else ""
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        futures = {pool.submit(tidy_one, tool, build, os.path.join(entry["directory"], entry["file"]), gcc): (names, mark)
                   for entry, names, mark in todo}
        for future in concurrent.futures.as_completed(futures):
            names, mark = futures[future]
            code, text = future.result()
            print(f"{'clean   ' if code == 0 else 'findings'} {' '.join(names)}", flush=True)
            if code == 0:
                mark.touch()
            else:
                bad += 1
                print(text, flush=True)
    return bad


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", required=True)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "lint")
    parser.add_argument("--format-only", action="store_true", help="no clang-tidy")
    parser.add_argument("--fix", action="store_true", help="let clang-format write")
    parser.add_argument("path", nargs="*", help="only files that start with this, say capstan/comm")
    options = parser.parse_args()
    formatter, _ = find_tool("clang-format", options.python)
    bad_format = check_format(formatter, our_files(r"\.(h|cpp|cu|cuh)$", options.path), options.fix)
    if options.format_only:
        return bad_format
    tidy, version = find_tool("clang-tidy", options.python)
    bad = check_tidy(tidy, version, options.build.resolve(), options.path)
    print(f"lint: format {'not clean' if bad_format else 'clean'}, {bad} targets with findings of clang-tidy")
    return 1 if bad or bad_format else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LintError as error:
        sys.exit(f"lint: {error}")

#!/usr/bin/env python3
"""Checks what the compiler cannot: who includes whom, how long files are, what must not be in them.

    tools/check_layers.py [--root DIR]

The table of dependencies is tools/layers.txt. Prints one line per violation, exits 1 when there is any.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
FOLDER_CALL = re.compile(r"capstan_folder\s*\(\s*([a-z_]+)([^)]*)\)")
LINK_CALL = re.compile(r"target_link_libraries\s*\(\s*(capstan[a-z_-]*)([^)]*)\)")
KEYWORD = re.compile(r"\b(SOURCES|DEPENDS|LINK|PRIVATE)\b")
# (what, which files, limit in lines): house style, section "files, headers, functions".
LENGTHS = [("test file", re.compile(r"^(tests|python/tests)/.*\.(cpp|h|py|cu)$"), 500),
           ("binding file", re.compile(r"^capstan/python/.*\.cpp$"), 200),
           ("header", re.compile(r"\.(h|cuh)$"), 200),
           ("source", re.compile(r"\.(cpp|cu|py)$"), 400)]
# Keys of a configuration in a text. Folders below config name an option by its field; see base/option_names.h.
KEY = re.compile(r'"[^"\n]*\b(zero_optimization|stage3_\w+|offload_(?:optimizer|param)\.\w+|activation_checkpointing\.|aio\.'
                 r'|train_(?:micro_)?batch_size\w*|capstan\.(?:units|backend|recompute|\w+_dtype|\w+_updates))')
COMMENT = re.compile(r"^\s*//.*$", re.MULTILINE)
# The first reads what another system wrote with its own configuration.
MAY_NAME_KEYS = ("capstan/checkpoint/deepspeed/",)
CODE = re.compile(r"\.(h|cuh|cpp|cu)$")
# Directories that every system has: a parent folder with such a name is not one machine's secret.
COMMON_TOPS = {"/", "/tmp", "/home", "/root", "/opt", "/srv", "/mnt", "/usr", "/var", "/build"}


def read_table(path):
    """folder -> set of what it may include; `*` and `x/options.h` are kept as written."""
    table = {}
    for line in path.read_text().splitlines():
        line = line.split("#", 1)[0].strip()
        if line:
            folder, _, allowed = line.partition(":")
            table[folder.strip()] = set(allowed.split())
    return table


def may_include(table, folder, header):
    """Whether a file of `folder` may include capstan/`header` (a path like shard/plan.h)."""
    target, _, rest = header.partition("/")
    allowed = table[folder]
    if target == folder or target in allowed:
        return True
    if "*" in allowed and target != "python":
        return True
    return rest == "options.h" and ("*/options.h" in allowed or f"{target}/options.h" in allowed)


def find_cycle(table):
    """A list of folders that depend on each other in a circle, or nothing."""
    done, path = set(), []

    def visit(folder):
        if folder in path:
            return path[path.index(folder):] + [folder]
        if folder in done:
            return None
        path.append(folder)
        for below in sorted(table.get(folder, ())):
            cycle = visit(below) if below in table else None
            if cycle:
                return cycle
        path.pop()
        done.add(folder)
        return None

    for folder in table:
        cycle = visit(folder)
        if cycle:
            return cycle
    return None


def owner_of(name):
    """The folder that a file belongs to in the table: capstan/X/… is X."""
    parts = name.split("/")
    return parts[1] if parts[0] == "capstan" and len(parts) > 2 else None


def check_includes(table, name, text):
    folder = owner_of(name)
    if folder is None:
        return
    if folder not in table:
        yield f"{name}: the folder '{folder}' has no row in tools/layers.txt"
        return
    for header in INCLUDE.findall(text):
        if header.startswith("capstan/") and not may_include(table, folder, header[len("capstan/"):]):
            yield f"{name}: '{folder}' may not include {header} (tools/layers.txt)"
        if header == "torch/torch.h" and name.endswith((".h", ".cuh")):
            yield f"{name}: a header never includes torch/torch.h; take the narrow one"


def check_keys(table, name, text):
    folder = owner_of(name)
    row = table.get(folder, {"*"})
    if folder == "config" or row & {"*", "config"} or name.startswith(MAY_NAME_KEYS):
        return
    for key in sorted(set(KEY.findall(COMMENT.sub("", text)))):
        yield f"{name}: a text names the key {key}: '{folder}' is below config; say options.names(field) instead"


def cmake_depends(text):
    """(folder, names after DEPENDS, capstan:: targets linked otherwise) for each capstan_folder()."""
    text = re.sub(r"#.*", "", text)
    for folder, arguments in FOLDER_CALL.findall(text):
        pieces = KEYWORD.split(arguments)
        depends = {word for key, names in zip(pieces[1::2], pieces[2::2]) if key == "DEPENDS"
                   for word in names.split() if "$" not in word}
        linked = {word[len("capstan::"):] for key, names in zip(pieces[1::2], pieces[2::2])
                  if key in ("LINK", "PRIVATE") for word in names.split() if word.startswith("capstan::")}
        yield folder, depends, linked


def may_link(table, owner, target):
    return may_include(table, owner, f"{target}/") or may_include(table, owner, f"{target}/options.h")


def check_cmake(table, name, text):
    owner = owner_of(name)
    for program, targets in LINK_CALL.findall(re.sub(r"#.*", "", text)) if owner in table else ():
        for target in sorted({t for t in re.findall(r"capstan::([a-z_]+)", targets) if t in table}):
            if not may_link(table, owner, target):
                yield f"{name}: {program} links '{target}', which tools/layers.txt does not allow"
    for folder, depends, linked in cmake_depends(text):
        if owner not in table or not (folder == owner or folder.startswith(f"{owner}_")):
            yield f"{name}: capstan_folder({folder}) is not in a folder of that name with a row in tools/layers.txt"
            continue
        for target in sorted(depends | (linked & set(table))):
            if target.startswith(f"{owner}_"):
                continue  # a part of the same folder, say comm_nccl of comm
            if not may_link(table, owner, target):
                yield f"{name}: capstan_folder({folder}) links '{target}', which tools/layers.txt does not allow"


def check_length(name, text):
    for what, pattern, limit in LENGTHS:
        if pattern.search(name):
            lines = text.count("\n")
            if lines > limit:
                yield f"{name}: {lines} lines; the limit of a {what} is {limit}: split it"
            return


def machine_paths(root):
    """Paths that only this machine has: where the checkout lies."""
    paths = [str(root)]
    if str(root.parent) not in COMMON_TOPS:
        paths.append(str(root.parent) + "/")
    return paths


def check_paths(paths, name, text):
    for path in paths:
        if path in text:
            yield f"{name}: contains {path}, a path of this one machine"


def tracked_files(root):
    """Everything git knows or would add; a plain walk where there is no git."""
    listed = subprocess.run(["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard"],
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    if listed.returncode == 0:
        return sorted(n for n in set(listed.stdout.splitlines()) if (root / n).is_file())
    skip = ("build/", ".venv/", "out/", ".git/")
    names = (str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())
    return sorted(n for n in names if not n.startswith(skip))


def check(root):
    table = read_table(root / "tools" / "layers.txt")
    cycle = find_cycle(table)
    if cycle:
        yield f"tools/layers.txt: a circle: {' -> '.join(cycle)}"
    paths = machine_paths(root)
    for name in tracked_files(root):
        try:
            text = (root / name).read_text()
        except UnicodeDecodeError:
            continue  # a binary file
        if CODE.search(name):
            yield from check_includes(table, name, text)
            yield from check_keys(table, name, text)
        if name.endswith("CMakeLists.txt"):
            yield from check_cmake(table, name, text)
        yield from check_length(name, text)
        yield from check_paths(paths, name, text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    problems = list(check(parser.parse_args().root.resolve()))
    for problem in problems:
        print(problem)
    print(f"layers: {len(problems)} violations")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

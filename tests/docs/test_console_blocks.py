"""What the documents show is what happens.

A fenced block after `<!-- file: NAME -->` is written into a folder of the document's own; a console block after
`<!-- checked -->` is run there: each `$ command` must print the lines below it. A line `...` stands for any lines,
`...` inside a line for any text.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(os.environ["CAPSTAN_SOURCE"])
BLOCK = re.compile(r"<!-- (checked|file: [\w./-]+) -->\s*\n```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
SEPARATOR = "=== end of command ==="
DOCUMENTS = sorted(p for p in [*SOURCE.glob("*.md"), *SOURCE.glob("docs/*.md")] if "<!-- checked -->" in p.read_text())


def parse_console(text):
    """[(command, expected output)] of a console block."""
    steps = []
    for line in text.splitlines():
        if line.startswith("$ "):
            steps.append([line[2:], []])
        elif steps and steps[-1][0].endswith("\\"):
            steps[-1][0] += "\n" + line
        else:
            steps[-1][1].append(line)
    return [(command, "\n".join(lines)) for command, lines in steps]


def matches(expected, actual):
    pattern = ""
    for line in expected.strip().splitlines():
        any_lines = line == "..."  # also none
        pattern += r"(?:[^\n]*\n)*?" if any_lines else re.escape(line).replace(r"\.\.\.", r"[^\n]*?") + r"\n"
    lines = "".join(line + "\n" for line in actual.strip().splitlines())
    return re.fullmatch(pattern, lines) is not None


def run_console(text, folder, **variables):
    steps = parse_console(text)
    script = "".join(f"{command}\n_status=$?; echo; echo '{SEPARATOR}'; (exit $_status)\n" for command, _ in steps)
    environment = dict(os.environ, PATH=f"{os.environ['CAPSTAN_BIN']}:{os.environ['PATH']}", COLUMNS="120") | variables
    done = subprocess.run(["bash", "-c", script], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    outputs = done.stdout.split(SEPARATOR)
    for (command, expected), actual in zip(steps, outputs):
        assert matches(expected, actual), f"$ {command}\nprints:\n{actual.strip()}\nthe document says:\n{expected}"
    assert len(outputs) == len(steps) + 1, done.stdout


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_documented_commands_print_what_the_document_says(document, tmp_path):
    for kind, text in BLOCK.findall(document.read_text()):
        if kind == "checked":
            run_console(text, tmp_path)
        else:
            (tmp_path / kind.split(": ")[1]).write_text(text)


def anchors(text):
    """Of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+?) *$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", sorted([*SOURCE.glob("*.md"), *SOURCE.glob("docs/*.md"), *SOURCE.glob("examples/*/*.md")]),
                         ids=lambda p: str(p.relative_to(SOURCE)))
def test_links_between_documents_lead_somewhere(document):
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", document.read_text()):
        if "://" in target:
            continue
        file = document.parent / target if target else document
        assert file.exists(), f"{document.name} links to {target}"
        assert not anchor or anchor in anchors(file.read_text()), f"{document.name} links to {target}#{anchor}"


def test_the_comparison_itself():
    assert matches("a\nb", "a\nb\n")
    assert matches("", "\n")
    assert matches("a\n...\nc", "a\nb\nb\nc")
    assert matches("a\n...\nc", "a\nc")
    assert matches("...\nc\n...", "c")
    assert not matches("a\n...\nc", "a\nb")
    assert matches("took ... s", "took 1.5 s")
    assert not matches("took ... s", "took 1.5\n s")
    assert not matches("a\nb", "a\nc")

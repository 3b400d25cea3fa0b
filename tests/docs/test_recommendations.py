"""Commands, flags, targets and files that messages, help and documents tell the reader to use are there."""

import os
import re
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(os.environ["CAPSTAN_SOURCE"])
CAPSTAN = Path(os.environ["CAPSTAN_BIN"]) / "capstan"

# What follows the program's name in a sentence, not in a command.
PROSE = {"and", "needs", "on", "raises", "reads", "shards", "start", "swap", "that", "told", "was", "when", "is", "process", "import"}
# Flags of other programs, and mistakes that are shown as such.
FOREIGN_FLAGS = {"--wrap", "--mpi", "--local_rank", "--nproc", "--nproc_per_node", "--elastic", "--use_deepspeed",
                 "--gpus", "--gpu-reset", "--shm-size", "--per_device_train_batch_size", "--config_file", "--ulimit"}
SHOWN_MISTAKES = {"lanuch"}


def documents():
    files = [*SOURCE.glob("*.md"), *SOURCE.glob("docs/*.md"), *SOURCE.glob("examples/*/*.md")]
    return {file.relative_to(SOURCE): file.read_text() for file in sorted(files)}


def messages():
    """The string literals of the programs and packages, each on a line."""
    found = {}
    for file in sorted([*SOURCE.glob("capstan/**/*.cpp"), *SOURCE.glob("capstan/**/*.h"), *SOURCE.glob("python/**/*.py")]):
        text = re.sub(r'"\s*\n\s*"', "", file.read_text())
        text = re.sub(r"^\s*(//|#).*$", "", text, flags=re.M)
        found[file.relative_to(SOURCE)] = "\n".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', text))
    return found


def help_of(*words):
    done = subprocess.run([CAPSTAN, *words, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def commands():
    """By command, such as "config check": the flags of its help."""
    known = {}

    def add(words):
        text = help_of(*words)
        below = re.findall(r"^  ([a-z][a-z-]*)  ", text.partition("\nSubcommands:\n")[2], re.M)
        known[" ".join(words)] = set(re.findall(r"(?<![\w-])(--?[a-zA-Z][\w-]*)", text))
        for word in below:
            add([*words, word])

    add([])
    add(["launch-agent"])  # not for people, so the help leaves it out
    return known


def commands_in(text):
    """What stands behind the program's name, to the end of the command or of the sentence."""
    for found in re.finditer(r"\bcapstan ([a-z][\w-]*)([^`\n|;>&)]*)", text):
        yield found[1], found[2].split()


def problems_of(word, rest, commands):
    if word in PROSE | SHOWN_MISTAKES:
        return []
    name = f"{word} {rest[0]}" if rest and f"{word} {rest[0]}" in commands else word
    if name not in commands:
        return [f"there is no `capstan {word}`"]
    flags = []
    for each in rest:
        if name in ("launch", "tune") and (each.endswith(".py") or each in ("--no_python", "train")):
            break  # the rest belongs to the script
        if re.fullmatch(r"--?[a-zA-Z][\w-]*(=.*)?", each):
            flags.append(each.partition("=")[0])
    return [f"`capstan {name}` has no {flag}" for flag in flags if flag not in commands[name]]


def test_the_help_names_the_commands(commands):
    assert {"train", "launch", "generate", "report", "config check", "checkpoint inspect"} <= set(commands)
    assert problems_of("tunes", [], commands) and problems_of("train", ["--nonsense"], commands)


@pytest.mark.parametrize("texts", [documents, messages], ids=["documents", "messages"])
def test_every_command_that_is_recommended_exists(texts, commands):
    wrong = [f"{file}: {problem}" for file, text in texts().items() for word, rest in commands_in(text)
             for problem in problems_of(word, rest, commands)]
    assert not wrong, "\n".join(wrong)


def test_every_flag_in_a_message_exists(commands):
    known = set().union(*commands.values()) | FOREIGN_FLAGS
    wrong = [f"{file}: {flag}" for file, text in messages().items()
             if file.parts[0] == "capstan" and file.name not in ("carriers.cpp", "script_job.cpp", "trace_page.cpp")
             for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", text)
             if flag not in known and not any(each.startswith(flag) for each in known)]
    assert not wrong, "\n".join(wrong)


def test_every_make_target_exists():
    targets = set(re.findall(r"^([a-z]+):", (SOURCE / "Makefile").read_text(), re.M))
    texts = {**documents(), **messages()}
    wrong = [f"{file}: make {target}" for file, text in texts.items() for target in re.findall(r"`make ([a-z]+)[` ]", text)
             if target not in targets]
    assert wrong == [] and "train" in targets


def test_every_file_that_is_named_exists():
    wrong = []
    for file, text in documents().items():
        for link in re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", text):
            if not (SOURCE / file.parent / link).exists():
                wrong.append(f"{file}: {link}")
    for file, text in {**documents(), **messages()}.items():
        for path in re.findall(r"(?<![\w/.])((?:docs|tools|tests|examples|benchmarks)/[\w/.]+\.\w+)", text):
            if not (SOURCE / path).exists():
                wrong.append(f"{file}: {path}")
    assert not wrong, "\n".join(wrong)

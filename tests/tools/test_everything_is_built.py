"""A test file that nobody builds proves nothing."""

import re

import pytest

from load_tool import SOURCE, load_tool

run_tests = load_tool("run_tests")


def cmake_words(folder):
    """Every word of the CMakeLists.txt files in `folder` and above it, up to the root."""
    words = set()
    while True:
        path = folder / "CMakeLists.txt"
        if path.exists():
            text = re.sub(r"#.*", "", path.read_text())
            words |= {(folder / word).resolve() for word in re.split(r"[\s()]+", text) if word}
        if folder == SOURCE:
            return words
        folder = folder.parent


@pytest.mark.parametrize("pattern", ["tests/**/*_test.cpp", "benchmarks/**/*_bench.cpp", "capstan/**/*.cpp",
                                     "capstan/**/*.cu"])
def test_every_source_is_named_in_a_cmake_list(pattern):
    unnamed = [str(p.relative_to(SOURCE)) for p in sorted(SOURCE.glob(pattern))
               if p.resolve() not in cmake_words(p.parent)]
    assert unnamed == []


def test_every_python_test_is_in_a_folder_that_is_run():
    folders = run_tests.test_folders("")
    files = [p for top in ("tests", "python/tests") for p in (SOURCE / top).rglob("test_*.py")]
    assert files and all(p.parent in folders for p in files)


def test_no_test_file_has_a_name_that_nothing_picks_up():
    odd = [str(p.relative_to(SOURCE)) for p in (SOURCE / "tests").rglob("*")
           if re.search(r"(_test\.py|_tests\.cpp)$", p.name)]
    assert odd == []

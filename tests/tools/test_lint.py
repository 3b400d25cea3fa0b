"""What decides whether lint looks at a file again."""

import pytest

from load_tool import load_tool

lint = load_tool("lint")


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.setattr(lint, "ROOT", tmp_path)
    files = {".clang-tidy": "Checks: '*'", "tests/.clang-tidy": "Checks: '-x'",
             "capstan/a/a.cpp": '#include "capstan/a/a.h"\n', "capstan/a/a.h": '#include "capstan/b/b.h"\n',
             "capstan/b/b.h": "", "capstan/c/c.h": "", "tests/a/a_test.cpp": '#include "fixture.h"\n',
             "tests/a/fixture.h": ""}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def key(name, version="19", command="g++"):
    return lint.cache_key({"command": command}, version, [name], {})


def test_a_source_reaches_headers_through_headers_and_beside_it(tree):
    assert lint.reachable("capstan/a/a.cpp", {}) == ["capstan/a/a.cpp", "capstan/a/a.h", "capstan/b/b.h"]
    assert lint.reachable("tests/a/a_test.cpp", {}) == ["tests/a/a_test.cpp", "tests/a/fixture.h"]


@pytest.mark.parametrize("name, changed, again", [
    ("capstan/a/a.cpp", "capstan/b/b.h", True),
    ("capstan/a/a.cpp", "capstan/c/c.h", False),
    ("capstan/a/a.cpp", ".clang-tidy", True),
    ("capstan/a/a.cpp", "tests/.clang-tidy", False),
    ("tests/a/a_test.cpp", "tests/.clang-tidy", True),
])
def test_a_file_is_checked_again_when_something_it_depends_on_changes(tree, name, changed, again):
    before = key(name)
    (tree / changed).write_text("changed")
    assert (key(name) != before) == again


def test_another_version_or_compile_command_checks_again(tree):
    name = "capstan/a/a.cpp"
    assert len({key(name), key(name, version="20"), key(name, command="g++ -O2")}) == 3


def test_a_missing_build_tree_is_explained(tree):
    with pytest.raises(lint.LintError, match="fix: make lint"):
        lint.check_tidy("clang-tidy", "19", tree / "nowhere", [])

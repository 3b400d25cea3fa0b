"""The tool that breaks promises: what it edits, what it calls caught, and that it leaves nothing behind."""

import sys

import pytest

from load_tool import SOURCE, load_tool

mutate = load_tool("mutate")

LIST = """# a comment
[wait-dropped] nobody waits
python/a.py
- wait( op )
- go()
+ go()
? tests/x/test_a.py::test_b
"""


@pytest.fixture
def mutation():
    return mutate.read_list(LIST)[0]


def test_a_mutation_is_read(mutation):
    assert (mutation.name, mutation.what, mutation.file) == ("wait-dropped", "nobody waits", "python/a.py")
    assert (mutation.old, mutation.new, mutation.tests) == (["wait( op )", "go()"], ["go()"], ["tests/x/test_a.py::test_b"])
    assert mutation.folder == "python"


@pytest.mark.parametrize("text, after, problem", [
    ("if x:\n    wait( op )\n    go()\n", "if x:\n    go()\n", ""),
    ("wait(\n   op )   go()", "go()", ""),
    ("wait(op) go()", None, "not there any more"),
    ("wait( op ) go() wait( op ) go()", None, "there 2 times")])
def test_an_edit_finds_its_text_however_it_is_wrapped(mutation, text, after, problem):
    edited, why = mutate.edited(text, mutation)
    assert edited == after and problem in why


@pytest.fixture
def project(tmp_path):
    """A project of one function and tests of it."""
    (tmp_path / "python").mkdir()
    (tmp_path / "tests" / "x").mkdir(parents=True)
    (tmp_path / "python" / "a.py").write_text("def add(a, b):\n    return a + b\n")
    load = f"import sys; sys.path.insert(0, '{tmp_path}/python'); from a import add\n"
    (tmp_path / "tests/x/test_good.py").write_text(load + "def test(): assert add(2, 3) == 5\n")
    (tmp_path / "tests/x/test_weak.py").write_text(load + "def test(): assert add(0, 0) == 0\n")
    (tmp_path / "tests/x/test_broken.py").write_text("def test(): assert False\n")
    return mutate.Project(tmp_path, sys.executable)


@pytest.mark.parametrize("new, test, outcome", [
    ("return a - b", "good", "caught"),
    ("return a - b", "weak", "survived"),
    ("return a - b", "broken", "a test fails or is missing without the mutation"),
    ("return a - b", "nowhere", "a test fails or is missing without the mutation"),
    ("return a -", "good", "does not compile")])
def test_the_outcome_is_what_the_test_says_and_the_file_is_as_before(project, new, test, outcome):
    one = mutate.Mutation("m", "minus", "python/a.py", ["return a + b"], [new], [f"tests/x/test_{test}.py"])
    assert project.try_one(one)[0] == outcome
    assert (project.root / "python" / "a.py").read_text() == "def add(a, b):\n    return a + b\n"


def test_the_table_says_what_survived(mutation):
    text = mutate.table([(mutation, "caught", "a_test A.B"), (mutation, "survived", ""), (mutation, "no text", "")], "abc")
    assert "1 of 3 caught" in text
    assert "| nobody waits | python | `a_test A.B` |  |" in text
    assert "| nobody waits | python |  | yes |" in text
    assert "| nobody waits | python |  | not tried: no text |" in text


def test_the_list_of_the_project_can_be_read_and_names_tests():
    mutations = mutate.read_list((SOURCE / "tools/mutations.txt").read_text())
    assert len(mutations) >= 100
    assert len({m.name for m in mutations}) == len(mutations)
    assert all(m.file and m.old and m.tests for m in mutations)

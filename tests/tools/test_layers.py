"""The layer check: our own tree is clean, and each rule finds its violation."""

import pytest

from load_tool import SOURCE, load_tool

layers = load_tool("check_layers")

TABLE = """# a comment
base:
json: base
shard: base
config: base json */options.h
python: base json
cli: *
"""


def problems(tmp_path, files, table=TABLE):
    for name, text in {"tools/layers.txt": table, **files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return list(layers.check(tmp_path))


def test_our_own_tree_has_no_violation():
    assert list(layers.check(SOURCE)) == []


def test_every_folder_has_a_row():
    rows = layers.read_table(SOURCE / "tools" / "layers.txt")
    folders = {p.parent.name for p in (SOURCE / "capstan").glob("*/CMakeLists.txt")}
    assert folders <= set(rows)


@pytest.mark.parametrize("name, include", [
    ("capstan/json/reader.cpp", '#include "capstan/base/error.h"'),
    ("capstan/json/reader.cpp", '#include "capstan/json/value.h"'),
    ("capstan/config/read.cpp", '#include "capstan/shard/options.h"'),
    ("capstan/cli/main.cpp", '#include "capstan/config/read.h"'),
    ("tests/json/reader_test.cpp", '#include "capstan/cli/command.h"'),
    ("capstan/shard/a.cpp", "#include <torch/torch.h>"),
])
def test_allowed_includes_pass(tmp_path, name, include):
    assert problems(tmp_path, {name: include + "\n"}) == []


@pytest.mark.parametrize("name, include, part", [
    ("capstan/base/a.cpp", '#include "capstan/json/value.h"', "'base' may not include"),
    ("capstan/config/read.cpp", '#include "capstan/shard/plan.h"', "'config' may not include"),
    ("capstan/json/a.h", "# include <capstan/shard/options.h>", "'json' may not include"),
    ("capstan/shard/a.h", "#include <torch/torch.h>", "a header never includes torch/torch.h"),
    ("capstan/new_one/a.h", '#include "capstan/base/error.h"', "has no row"),
    ("capstan/cli/a.cpp", '#include "capstan/python/bind.h"', "'cli' may not include"),
    ("capstan/python/bind.cpp", '#include "capstan/shard/plan.h"', "'python' may not include"),
])
def test_a_forbidden_include_is_named(tmp_path, name, include, part):
    found = problems(tmp_path, {name: include + "\n"})
    assert len(found) == 1 and found[0].startswith(name) and part in found[0]


def test_a_key_of_the_configuration_in_a_text_below_config_is_named(tmp_path):
    text = 'throw ConfigError({.where = "zero_optimization.stage"});\n'
    assert problems(tmp_path, {"capstan/config/a.cpp": text, "capstan/cli/a.cpp": text,
                               "tests/shard/a_test.cpp": text, "capstan/shard/b.cpp": '// "zero_optimization"\n'}) == []
    found = problems(tmp_path, {"capstan/shard/a.cpp": text})
    assert len(found) == 1 and found[0].startswith("capstan/shard/a.cpp") and "zero_optimization" in found[0]


def test_a_forbidden_link_is_named(tmp_path):
    text = "capstan_folder(json\n  SOURCES a.cpp  # why\n  DEPENDS base shard\n  LINK fmt::fmt capstan::torch)\n"
    found = problems(tmp_path, {"capstan/json/CMakeLists.txt": text})
    assert found == ["capstan/json/CMakeLists.txt: capstan_folder(json) links 'shard', "
                     "which tools/layers.txt does not allow"]


def test_a_part_of_a_folder_has_the_rights_of_the_folder(tmp_path):
    good = "capstan_folder(json_fast DEPENDS base json)\ncapstan_folder(json DEPENDS base json_fast)\n"
    assert problems(tmp_path, {"capstan/json/CMakeLists.txt": good}) == []
    bad = problems(tmp_path, {"capstan/json/CMakeLists.txt": "capstan_folder(json_fast DEPENDS shard)\n"})
    assert len(bad) == 1 and "links 'shard'" in bad[0]
    strange = problems(tmp_path, {"capstan/json/CMakeLists.txt": "capstan_folder(shard DEPENDS base)\n"})
    assert len(strange) == 1 and "not in a folder of that name" in strange[0]


def test_a_forbidden_private_link_is_named(tmp_path):
    found = problems(tmp_path, {"capstan/json/CMakeLists.txt": "capstan_folder(json PRIVATE capstan::shard)\n"})
    assert len(found) == 1 and "links 'shard'" in found[0]


def test_a_forbidden_link_of_a_program_or_module_is_named(tmp_path):
    text = "add_library(capstan_python MODULE a.cpp)\ntarget_link_libraries(capstan_python PRIVATE capstan::json{})\n"
    assert problems(tmp_path, {"capstan/python/CMakeLists.txt": text.format(" fmt::fmt capstan::torch_python")}) == []
    found = problems(tmp_path, {"capstan/python/CMakeLists.txt": text.format("\n  capstan::shard")})
    assert found == ["capstan/python/CMakeLists.txt: capstan_python links 'shard', "
                     "which tools/layers.txt does not allow"]


@pytest.mark.parametrize("name, lines, limit", [
    ("capstan/json/a.h", 201, 200), ("capstan/json/a.cpp", 401, 400), ("tests/json/a_test.cpp", 501, 500),
    ("capstan/python/bind_a.cpp", 201, 200)])
def test_a_file_beyond_its_limit_is_named(tmp_path, name, lines, limit):
    assert problems(tmp_path, {name: "\n" * limit}) == []
    found = problems(tmp_path, {name: "\n" * lines})
    assert len(found) == 1 and str(lines) in found[0]


def test_a_path_of_this_machine_is_named(tmp_path):
    found = problems(tmp_path, {"docs/a.md": f"cd {tmp_path}/build\n"})
    assert found and all("a path of this one machine" in f for f in found)


def test_a_circle_in_the_table_is_named(tmp_path):
    found = problems(tmp_path, {}, table="base: json\njson: base\n")
    assert found == ["tools/layers.txt: a circle: base -> json -> base"]

"""The package deepspeed decides nothing: what a key means when it is not given, and what is not available, is said in one
place each. The sources are read, not run."""

import ast
import inspect
import os
from pathlib import Path

import pytest

from capstan import _C, optimizers

deepspeed = pytest.importorskip("deepspeed", reason="needs the package deepspeed")

from deepspeed import later  # noqa: E402
from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad  # noqa: E402
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam  # noqa: E402
from deepspeed.ops.lamb import FusedLamb  # noqa: E402
from deepspeed.ops.lion import DeepSpeedCPULion, FusedLion  # noqa: E402
from deepspeed.runtime import lr_schedules  # noqa: E402

PACKAGE = Path(os.environ.get("CAPSTAN_SOURCE", Path(__file__).parents[2])) / "python/deepspeed/deepspeed"
KEYS = {key for section in _C.config_sections() for key in _C.config_defaults(section)}
KEYS |= {part for section in _C.config_sections() for part in section.split(".")} - {"", "*"}
# Not keys of a configuration where they are read: groups of an optimizer, and its state.
OTHERS = {"betas", "momentum", "type", "params", "step"}
# DeepSpeed's own functions of these names take the default from their caller.
PASSED_ON = "runtime/config_utils.py"


def sources():
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text())


def called(node):
    return getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""


def constant_of(name, constants):
    """The text of a literal, or of a name that deepspeed.runtime.constants gives one."""
    if isinstance(name, ast.Constant):
        return name.value
    return constants.get(getattr(name, "attr", getattr(name, "id", None)))


def defaults_read(path, tree, constants):
    """Places that say what a key is when it is not given: dict.get(key, default), getattr(section, key, default)."""
    for node in ast.walk(tree):
        place = {"get": 0, "setdefault": 0, "pop": 0, "getattr": 1}.get(called(node))
        if place is None or len(node.args) != place + 2:
            continue
        key = constant_of(node.args[place], constants)
        if key in KEYS - OTHERS and path != PASSED_ON:
            yield f"{path}:{node.lineno}: {ast.unparse(node)}"


def literals_of_fields(path, tree):
    """Fields of a section, as a model of pydantic, whose default is written down here; None stands for nothing."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef) or "DeepSpeedConfigModel" not in map(ast.unparse, node.bases):
            continue
        for field in filter(lambda each: isinstance(each, ast.AnnAssign), node.body):
            value = field.value.args[0] if called(field.value) == "Field" and field.value.args else field.value
            own = isinstance(value, (ast.Constant, ast.UnaryOp, ast.BinOp, ast.List)) or called(value) in ("int", "float")
            if own and ast.unparse(value) != "None":
                yield f"{path}:{field.lineno}: {node.name}.{ast.unparse(field)}"


def upstream_constants():
    return {name: value for name, value in vars(deepspeed.runtime.constants).items() if isinstance(value, str)}


def test_no_default_of_a_key_is_written_down_twice():
    constants = upstream_constants()
    assert {"reduce_bucket_size", "gradient_clipping", "zero_optimization", "loss_scale"} <= KEYS
    found = [place for path, tree in sources() for place in defaults_read(path, tree, constants)]
    assert not found, "\n".join(found)


# In DeepSpeed these are not keys, or mean a thing that the core has no default for.
OWN_FIELDS = {"stage3_gather_fp16_weights_on_model_save", "pipeline"}


def test_sections_as_models_have_the_defaults_of_the_core():
    found = [place for path, tree in sources() for place in literals_of_fields(path, tree)
             if not any(f".{name}: " in place for name in OWN_FIELDS)]
    assert not found, "\n".join(found)


def test_these_checks_find_what_they_are_for():
    bad = ast.parse('a = d.get("reduce_bucket_size", 5)\nb = d.get(constants.GRADIENT_CLIPPING, 1.0)\nc = d.get("else", 1)\n'
                    'class M(DeepSpeedConfigModel):\n    x: int = Field(5, ge=0)\n    y: bool = True\n    z: int = _CORE["z"]\n')
    assert len(list(defaults_read("x.py", bad, upstream_constants()))) == 2
    assert [place.rpartition(".")[2][0] for place in literals_of_fields("x.py", bad)] == ["x", "y"]


@pytest.mark.parametrize("name", lr_schedules.SCHEDULES)
def test_schedules_have_the_defaults_of_the_core(name):
    core = _C.config_defaults("scheduler.params", name.lower())
    for parameter in list(inspect.signature(lr_schedules.SCHEDULES[name]).parameters.values())[1:]:
        if parameter.name not in ("last_batch_iteration", "more"):
            given = None if parameter.default is parameter.empty else parameter.default
            assert core[parameter.name] == given, parameter.name


# None stands for what a class calls 0.
ABSENT_AS_ZERO = {"max_grad_norm"}


@pytest.mark.parametrize("kind", [optimizers.AdamW, optimizers.Adam, optimizers.Lamb, optimizers.Lion, optimizers.Adagrad,
                                  FusedAdam, DeepSpeedCPUAdam, FusedLamb, FusedLion, DeepSpeedCPULion, DeepSpeedCPUAdagrad])
def test_optimizers_have_the_defaults_of_the_core(kind):
    core = _C.config_defaults("optimizer.params", getattr(kind, "kind", None) or "adamw")
    known = {name: parameter.default for name, parameter in inspect.signature(kind).parameters.items()
             if parameter.default is not parameter.empty and name in core and name not in ABSENT_AS_ZERO}
    assert {"lr", "weight_decay"} <= set(known)
    for name, default in known.items():
        assert core[name] == (list(default) if isinstance(default, tuple) else default), name


# What the core knows

# By hand is what their users call on their own, without an engine: tensors of any model, timers, names of files.
ON_ITS_OWN = {"checkpoint/deepspeed_checkpoint.py", "checkpoint/model_3d.py", "comm/comm.py", "comm/utils.py",
              "runtime/activation_checkpointing/offload_activations.py", "runtime/comm/coalesced_collectives.py",
              "runtime/pipe/axes.py", "runtime/pipe/schedule.py", "runtime/utils.py", "utils/comms_logging.py", "utils/timer.py"}

# These divide numbers of ranks that the caller's mpu or arguments give.
RATIOS = {"runtime/config.py", "runtime/engine.py", "runtime/pipe/module.py", "utils/groups.py"}


def decided_by_hand(path, tree):
    """Counters that an engine keeps, patterns of ranks, sizes of parts, and sums over ranks."""
    for node in ast.walk(tree):
        counts = isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute)
        patterns = path == "utils/groups.py" and (called(node) in ("range", "zip") or isinstance(node, ast.Slice) and node.lower)
        sizes = isinstance(node, ast.BinOp) and isinstance(node.op, (ast.FloorDiv, ast.Mod)) and path not in RATIOS
        if path not in ON_ITS_OWN and (counts or patterns or sizes or called(node) in ("all_reduce", "is_due")):
            yield f"{path}:{node.lineno}: {ast.unparse(node)}"


def test_counters_patterns_of_ranks_and_norms_are_asked_of_the_core():
    found = [place for path, tree in sources() for place in decided_by_hand(path, tree)]
    assert not found, "\n".join(found)


def test_this_check_finds_what_it_is_for():
    bad = ast.parse("self.global_steps += 1\nranks[i::n]\nlist(range(0, n, 2))\ndist.all_reduce(total)\nname += 1\naxes[::-1]")
    assert sorted(place.split(":")[1] for place in decided_by_hand("utils/groups.py", bad)) == ["1", "2", "3", "4"]
    assert len(list(decided_by_hand("runtime/x.py", ast.parse("n // ranks + n % 2")))) == 2


# What is not available


def test_nothing_is_refused_but_by_the_one_table():
    for path, tree in sources():
        names = {getattr(node, "attr", getattr(node, "id", "")) for node in ast.walk(tree)}
        names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
        assert path == "later.py" or "NotAvailable" not in names, path


def test_every_use_in_the_table_is_refused_somewhere():
    used = {node.args[0].value for _, tree in sources() for node in ast.walk(tree) if called(node) == "refuse"}
    assert used == set(later.USES)


@pytest.mark.parametrize("module", later.NAMES)
def test_every_name_in_the_table_can_be_imported_and_raises_when_it_is_called(module):
    import importlib

    import capstan
    prefix, names = later.NAMES[module]
    for name in names.split():
        found = importlib.import_module(module)
        for part in name.removesuffix("()").split("."):
            found = getattr(found, part)
        assert inspect.isclass(found) == (not name.endswith("()"))
        with pytest.raises(capstan.NotAvailable, match=name.removesuffix("()")):
            found("anything", key=1)

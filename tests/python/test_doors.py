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

PYTHON = Path(os.environ.get("CAPSTAN_SOURCE", Path(__file__).parents[2])) / "python"
PACKAGE = PYTHON / "deepspeed/deepspeed"
KEYS = {key for section in _C.config_sections() for key in _C.config_defaults(section)}
KEYS |= {part for section in _C.config_sections() for part in section.split(".")} - {"", "*"}
# Not keys of a configuration where they are read: groups of an optimizer, and its state.
OTHERS = {"betas", "momentum", "type", "params", "step"}
# DeepSpeed's own functions of these names take the default from their caller.
PASSED_ON = "runtime/config_utils.py"


def sources(package=PACKAGE):
    for path in sorted(package.rglob("*.py")):
        yield path.relative_to(package).as_posix(), ast.parse(path.read_text())


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
              "runtime/data_pipeline/data_sampling/data_analyzer.py", "runtime/data_pipeline/data_sampling/data_sampler.py",
              "runtime/data_pipeline/data_sampling/indexed_dataset.py", "runtime/pipe/axes.py", "runtime/pipe/schedule.py", "runtime/utils.py", "utils/comms_logging.py", "utils/timer.py"}

# These divide numbers of ranks that the caller's mpu or arguments give.
RATIOS = {"runtime/config.py", "runtime/engine.py", "runtime/engine_ranks.py", "runtime/pipe/module.py",
          "runtime/tensor_parallel/__init__.py", "utils/groups.py"}


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


# What a stage, a loss scale and a key that is not given mean


# Stages of a pipeline are places in it, not numbers with a meaning.
PIPELINE_STAGES = {"stage_id", "num_stages", "stages"}


def _mentions_stage(node):
    names = [getattr(each, "attr", getattr(each, "id", "")) for each in ast.walk(node)]
    return any("stage" in name and name not in PIPELINE_STAGES for name in names)


def _is_stage_number(node):
    items = node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else [node]
    return all(isinstance(item, ast.Constant) and isinstance(item.value, int) for item in items) or "ZeroStageEnum" in ast.unparse(node)


def _asks_a_configuration(node):
    return any(word in ast.unparse(node) for word in ("_config", "view.", ".given(", ".section("))


def meanings(path, tree):
    """Comparisons of stage numbers, powers, fallbacks of what a configuration does not say, and keys set beside defaults."""
    for node in ast.walk(tree):
        stage = isinstance(node, ast.Compare) and (
            any(map(_mentions_stage, [node.left, *node.comparators])) and any(map(_is_stage_number, [node.left, *node.comparators])))
        power = (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and isinstance(node.left, ast.Constant)
                 and not isinstance(node.right, ast.Constant) and path not in ON_ITS_OWN)
        otherwise = isinstance(node, ast.IfExp) and isinstance(node.orelse, ast.Constant) and node.orelse.value is not None \
            and _asks_a_configuration(node.test)
        instead = isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or) and _asks_a_configuration(node.values[0]) and (
            isinstance(node.values[-1], ast.Constant) or ast.unparse(node.values[-1]).startswith("torch."))
        beside = isinstance(node, ast.Dict) and None in node.keys and any(
            isinstance(key, ast.Constant) and key.value in KEYS - OTHERS and isinstance(value, ast.Constant)
            for key, value in zip(node.keys, node.values))
        number = (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute) and isinstance(node.value, ast.Constant)
                  and isinstance(node.value.value, float))
        if stage or power or otherwise or instead or beside or number:
            yield f"{path}:{node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("package", [PACKAGE, PYTHON / "capstan"], ids=["deepspeed", "capstan"])
def test_what_a_configuration_means_is_asked_of_the_core(package):
    found = [place for path, tree in sources(package) for place in meanings(path, tree)]
    assert not found, "\n".join(found)


def test_that_check_finds_what_it_is_for():
    bad = ["if self.stage == 3: pass", "zero_optimization_stage() in (1, 2)", "stage >= 2", "stage != ZeroStageEnum.weights",
           "2**self.initial_scale_power", "self.scale_factor = 2.0", 'view.value("seed") if view.given("seed") else 0',
           "dtype_of(self._config.torch_autocast_dtype) or torch.bfloat16", "self._config.view.value('x') or 1",
           '{**defaults, "check_grad_overflow": False}']
    good = ["stage == other", "self.stage_id == 0", "self.num_stages > 1", "self.view is None", "2**30", "self.count = 0", "x if self._config.view.shards_params else None",
            "list(given) or 1", '{**defaults, "check_grad_overflow": asked}']
    assert [len(list(meanings("runtime/x.py", ast.parse(line)))) for line in bad] == [1] * len(bad)
    assert [len(list(meanings("runtime/x.py", ast.parse(line)))) for line in good] == [0] * len(good)


def test_a_section_read_alone_has_what_its_users_know():
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.runtime.zero.offload_config import DeepSpeedZeroOffloadOptimizerConfig, DeepSpeedZeroOffloadParamConfig
    assert [DeepSpeedZeroConfig(stage=stage).overlap_comm for stage in range(4)] == [False, False, False, True]
    assert DeepSpeedZeroConfig(stage=1, overlap_comm=True).overlap_comm is True
    assert (DeepSpeedBF16Config().immediate_grad_update, DeepSpeedBF16Config().check_grad_overflow) == (True, False)
    assert not DeepSpeedZeroOffloadParamConfig().pin_memory and not DeepSpeedZeroOffloadOptimizerConfig().pin_memory
    assert DeepSpeedFP16Config().initial_dynamic_scale() == 2**16
    assert DeepSpeedFP16Config(initial_scale_power=5).dynamic_loss_scale_args()["init_scale"] == 32


@pytest.mark.parametrize("stage, schedule, kinds", [(0, None, ""), (1, None, "o"), (2, None, "og"), (3, None, "ogp"),
                                                    (2, "at_step", "og"), (1, "per_backward", "o")])
def test_what_a_run_shards_is_the_cores_policy(stage, schedule, kinds):
    config = {"zero_optimization": {"stage": stage}, "capstan": {"reduce_schedule": schedule} if schedule else {}}
    view = _C.resolve_config(_C.read_config(config), reads_only=True)
    assert (view.shards_optimizer, view.shards_gradients, view.shards_params) == tuple(kind in kinds for kind in "ogp")


def test_precision_is_the_cores_reading():
    import torch

    def view(**sections):
        return _C.resolve_config(_C.read_config(sections), reads_only=True, door=_C.Door.DEEPSPEED)

    assert (view().loss_scale, view().dynamic_loss_scale) == (1, False)
    assert view(fp16={"enabled": True}).dynamic_loss_scale and view(fp16={"enabled": True}).loss_scale == 0
    fixed = view(fp16={"enabled": True, "loss_scale": 8})
    assert (fixed.loss_scale, fixed.dynamic_loss_scale) == (8, False)
    assert view().autocast_dtype == torch.bfloat16
    assert view(torch_autocast={"enabled": True, "dtype": "float16"}).autocast_dtype == torch.float16
    assert view(bf16={"enabled": True}).reduce_dtype == torch.bfloat16
    assert view(bf16={"enabled": True}, communication_data_type="fp32").reduce_dtype == torch.float32
    adam = {"type": "Adam", "params": {"adam_w_mode": False}}
    assert (view().optimizer_kind, view(optimizer=adam).optimizer_kind) == (None, "adam")
    assert view(optimizer={"type": "Adam"}).optimizer_kind == "adamw"
    assert _C.LOSS_SCALE_FACTOR == 2


def test_samples_are_shuffled_as_torch_does_where_nothing_is_said():
    def seed(door, **sections):
        return _C.resolve_config(_C.read_config(sections), reads_only=True, door=door).value("capstan.seed")

    assert seed(_C.Door.DEEPSPEED) == 0
    assert seed(_C.Door.DEEPSPEED, capstan={"seed": 7}) == 7


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

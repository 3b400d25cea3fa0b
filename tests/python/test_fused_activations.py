"""Hugging Face's tanh-GELU formulas become torch's one function: the same function, less to keep, taken back at the end."""

import copy
import os
import pickle
import subprocess
import sys

import pytest
import ranks
import torch

pytest.importorskip("transformers", reason="needs the package transformers")
pytest.importorskip("accelerate", reason="needs the package accelerate")
import hugging_face  # noqa: E402
import transformers  # noqa: E402
from transformers import activations  # noqa: E402

import capstan  # noqa: E402

FORMULAS = [activations.NewGELUActivation, activations.FastGELUActivation, activations.AccurateGELUActivation]


class Subclass(activations.NewGELUActivation):
    pass


def tiny():
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(hugging_face.tiny_config())


def batch():
    ids = torch.stack([row["input_ids"] for row in hugging_face.data(2)])
    return {"input_ids": ids, "labels": ids}


def engine_of(model, fused, stage=0, **more):
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0, "capstan": {"fuse_activations": fused},
              "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}, **more}
    return capstan.initialize(model, config, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2))


def train(fused, stage=0, compiled=False, **more):
    engine = engine_of(tiny(), fused, stage, **more)
    if compiled:
        engine.compile_units(backend="aot_eager")
    losses = []
    for _ in range(3):
        loss = engine(**batch()).loss
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def train_plain():
    model = tiny()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(3):
        loss = model(**batch()).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_losses_are_those_of_the_formula_within_rounding():
    formula, fused = ranks.run(1, train, False)[0], ranks.run(1, train, True)[0]
    assert formula == ranks.run(1, train_plain)[0]  # switched off, nothing is changed
    assert fused == pytest.approx(formula, rel=1e-5)


def in_bf16(fused):
    return train(fused, bf16={"enabled": True})


def test_losses_are_those_of_the_formula_within_rounding_in_bf16():
    formula, fused = ranks.run(1, in_bf16, False)[0], ranks.run(1, in_bf16, True)[0]
    assert fused == pytest.approx(formula, rel=2e-2)
    assert fused[-1] < fused[0]


def test_every_stage_gives_the_same_bits():
    first = ranks.run(2, train, True, 0)
    for stage in (1, 2, 3):
        assert ranks.run(2, train, True, stage) == first


@pytest.mark.parametrize("stage", [0, 3])
def test_a_compiled_model_trains_alike(stage):
    assert ranks.run(1, train, True, stage, True)[0] == pytest.approx(ranks.run(1, train, True)[0], rel=1e-5)


def test_the_function_is_in_the_compiled_graph():
    module = FORMULAS[0]()
    with torch.no_grad():
        expected = torch.nn.functional.gelu(torch.arange(-3.0, 3.0), approximate="tanh")
    capstan.activations.fuse(module)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.arange(-3.0, 3.0)), expected)


def kept_bytes(fused):
    engine = engine_of(tiny(), fused)
    kept = {}

    def note(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = engine(**batch()).loss
    loss.backward()
    return sum(kept.values())


def test_a_layer_keeps_three_wide_tensors_less():
    sizes = hugging_face.tiny_config()
    wide = batch()["input_ids"].numel() * 4 * sizes.n_embd * 4
    formula, fused = ranks.run(1, kept_bytes, False)[0], ranks.run(1, kept_bytes, True)[0]
    assert formula - fused >= 3 * wide * sizes.n_layer


def closed():
    model = tiny()
    engine = engine_of(model, True)
    module = model.transformer.h[0].mlp.act
    assert type(module) is activations.NewGELUActivation
    assert "forward" in vars(module)
    copies = [copy.deepcopy(module), pickle.loads(pickle.dumps(module))]
    engine.close()
    assert "forward" not in vars(module)
    x = torch.linspace(-4, 4, 64)
    for other in copies:
        torch.testing.assert_close(other(x), module(x))
    return True


def test_a_closed_engine_gives_the_class_its_forward_back():
    assert ranks.run(1, closed) == [True]


def test_a_pickled_module_needs_no_capstan(tmp_path):
    model = torch.nn.Sequential(FORMULAS[0]())
    capstan.activations.fuse(model)
    torch.save(model, tmp_path / "model")
    code = ("import sys, torch; model = torch.load(sys.argv[1], weights_only=False);"
            "assert 'capstan' not in sys.modules; print(model(torch.zeros(1)).item())")
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "model")], capture_output=True, text=True,
                          env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"})
    assert done.stdout.strip() == "0.0", done.stderr


@pytest.mark.parametrize("formula", FORMULAS)
def test_each_formula_is_that_function(formula):
    module, x = formula(), torch.linspace(-6, 6, 4001, dtype=torch.float64)
    expected = module(x)
    assert capstan.activations.fuse(module) == [module]
    torch.testing.assert_close(module(x), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["gelu", "quick_gelu", "gelu_10", "gelu_pytorch_tanh", "gelu_python_tanh", "relu"])
def test_other_functions_stay(name):
    module = activations.ACT2FN[name]
    assert capstan.activations.fuse(module) == []


def test_what_a_user_changed_stays():
    overridden, hooked, observed = FORMULAS[0](), FORMULAS[0](), FORMULAS[0]()
    overridden.forward = torch.sin
    hooked.register_forward_hook(lambda module, args, output: None)
    observed.register_full_backward_hook(lambda module, grad_in, grad_out: None)
    model = torch.nn.Sequential(Subclass(), overridden, hooked, observed)
    assert capstan.activations.fuse(model) == []
    assert overridden.forward is torch.sin


def test_a_class_that_another_package_changed_stays(monkeypatch):
    monkeypatch.setattr(FORMULAS[0], "forward", lambda self, x: 2 * x)
    assert capstan.activations.fuse(FORMULAS[0]()) == []

"""PipelineEngine: a model in stages has the bits of the same model in one piece."""

import threading
import time
from pathlib import Path

import pytest
import ranks
import torch

pytest.importorskip("deepspeed", reason="needs the package deepspeed")

import pipe_models  # noqa: E402
from deepspeed.pipe import PipelineModule  # noqa: E402
from pipe_models import config  # noqa: E402


def check_same(stages, data, settings):
    whole = ranks.run(data, pipe_models.train_whole, settings)
    piped = ranks.run(stages * data, pipe_models.train_piped, stages, settings)
    expected = whole[0][1]
    for rank, (losses, found) in enumerate(piped):
        own = whole[rank % data][0]
        assert [loss for loss, _ in losses] == own
        means = [sum(each) / data for each in zip(*(result[0] for result in whole))]
        assert [mean for _, mean in losses] == torch.tensor(means, dtype=torch.float32).tolist()
        assert found and all(torch.equal(found[name], expected[name]) for name in found)
    assert set().union(*(found for _, found in piped)) == set(expected)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_two_stages_of_two_data_ranks_have_the_bits_of_one_piece(stage):
    check_same(2, 2, config(stage))


@pytest.mark.parametrize("stage, dtype", [(0, "bf16"), (1, "bf16"), (2, "bf16"), (1, "fp16")])
def test_two_stages_in_16_bits_have_them_too(stage, dtype):
    check_same(2, 1, config(stage, dtype))


def test_four_stages_have_them_too():
    check_same(4, 1, config(1, capstan={"pipeline_schedule": "gpipe"}))


def test_an_offloaded_optimizer_has_them_too():
    settings = config(2, "bf16", capstan={"late_updates": "always"})
    settings["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
    check_same(2, 1, settings)


# What goes wrong

def failing(at_stage, kind):
    """The error of each rank where one stage fails at micro-batch 1."""
    engine = pipe_models.engine_of(pipe_models.piped(2), config(1, capstan={"timeout_s": 60}))
    data = pipe_models.batches(engine.grid.get_data_parallel_rank())
    if engine.stage_id == at_stage and engine.grid.get_data_parallel_rank() == 0:
        if kind == "data":
            data = iter([next(data)])
        else:
            inner, seen = engine.module.forward_funcs[0], []

            def fails(given):
                seen.append(given)
                if len(seen) == 2:
                    raise KeyError("a layer of ours")
                return inner(given)

            engine.module.forward_funcs[0] = fails
    try:
        engine.train_batch(data_iter=data)
    except Exception as error:
        return type(error).__name__, str(error), type(error.__cause__).__name__
    return None


@pytest.mark.parametrize("at_stage, kind, text", [(1, "data", "the data ended before micro-batch 1 of 3"),
                                                  (0, "layer", "a layer of ours")])
def test_an_error_on_one_stage_reaches_all_ranks_and_names_it(at_stage, kind, text):
    errors = ranks.run(4, failing, at_stage, kind)
    own = errors[2 * at_stage]
    assert own[0] == "CommError" and text in own[1] and f"stage {at_stage} of 2" in own[1]
    assert own[2] == {"data": "ConfigError", "layer": "KeyError"}[kind]
    for error in errors:
        assert error[0] == "CommError" and text in error[1] and f"stage {at_stage} of 2" in error[1], errors


def refusals():
    from deepspeed.runtime.pipe.engine import PipelineError
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
    engine = pipe_models.engine_of(pipe_models.piped(2), config(0, pipeline={"stages": "auto"}))
    for call in (engine.forward, engine.backward, engine.step):
        with pytest.raises(PipelineError):
            call(torch.zeros(1))
    with pytest.raises(RuntimeError, match="gradients enabled"), torch.no_grad():
        engine.train_batch()
    with pytest.raises(ValueError, match="3 stages, but the model has 2"):
        pipe_models.engine_of(pipe_models.piped(2), config(0, pipeline={"stages": 3}))
    sliced = PipelineModule(pipe_models.layers(), topology=PipeModelDataParallelTopology(num_pp=1, num_mp=2, num_dp=1))
    with pytest.raises(ValueError, match="axis model"):
        pipe_models.engine_of(sliced, config())


def test_what_a_pipeline_cannot_do_is_refused():
    ranks.run(2, refusals)


# What else the engine does

def evaluated(stages):
    engine = pipe_models.engine_of(pipe_models.piped(stages), config())
    where = engine.grid.get_data_parallel_rank()
    loss = engine.eval_batch(pipe_models.batches(where))
    assert engine.data_iterator is None and engine.global_steps == 0
    many, logits = engine.eval_batch(pipe_models.batches(where), return_logits=True, num_micro_batches=5)
    assert (logits is not None) == engine.is_last_stage() and (logits is None or logits.shape == (2, 4, 10))
    each = engine.eval_batch(pipe_models.batches(where), reduce_output=None)
    outputs = engine.eval_batch(iter([next(pipe_models.batches(0))] * 3), compute_loss=False)
    assert (outputs is None) != engine.is_last_stage()
    trained = engine.train_batch(pipe_models.batches(where))
    return loss, many, each, outputs, trained.item()


def test_evaluation_gives_the_mean_loss_on_every_rank():
    whole, staged = ranks.run(2, evaluated, 1), ranks.run(4, evaluated, 2)
    for rank, (loss, many, each, outputs, trained) in enumerate(staged):
        assert torch.equal(loss, whole[0][0]) and torch.equal(many, whole[0][1]) and not torch.equal(loss, many)
        assert len(each) == 3 and all(map(torch.equal, each, whole[rank % 2][2]))
        assert outputs is None or torch.equal(outputs, whole[rank % 2][3])
        assert trained == whole[0][4]


def with_keys(pipeline, schedule):
    """How often a layer ran forward, and the weights afterwards."""
    engine = pipe_models.engine_of(pipe_models.piped(2), config(pipeline=pipeline, capstan={"pipeline_schedule": schedule}))
    for module in engine.module.modules():
        module.inplace = False  # what changes its own input cannot be run again
    seen = []
    layer = engine.module.forward_funcs[1]
    layer.inner.register_forward_hook(lambda *_: seen.append(torch.is_grad_enabled()))
    engine.train_batch(pipe_models.batches(0))
    engine.module.set_checkpoint_interval(0)
    return len(seen), engine.module.inputs_need_gradients, pipe_models.weights(engine)


def test_recomputed_layers_run_twice_with_the_same_result():
    plain = ranks.run(2, with_keys, {}, "1f1b")
    for pipeline in ({"activation_checkpoint_interval": 1}, {"activation_checkpoint_interval": 2, "use_reentrant": False}):
        again = ranks.run(2, with_keys, pipeline, "gpipe")
        for (before, _, weights), (after, _, found) in zip(plain[:1], again[:1]):
            assert (before, after) == (3, 6)
            assert all(torch.equal(found[name], weights[name]) for name in weights)


def changed_batch():
    engine = pipe_models.engine_of(pipe_models.piped(2), config())
    data = pipe_models.batches(0, steps=5)
    engine.set_dataiterator(data)
    engine.train_batch()
    engine.set_train_batch_size(10)
    assert engine.micro_batches == 5
    engine.train_batch()
    return engine.global_samples, len(list(data)) if engine.is_first_stage() or engine.is_last_stage() else None


def test_the_number_of_micro_batches_may_change():
    assert ranks.run(2, changed_batch) == [(16, 7), (16, 7)]


def waiting(folder):
    """The first stage goes on only when a thread of the second has written a file, while that one's train_batch() waits."""
    engine = pipe_models.engine_of(pipe_models.piped(2), config())
    sign, began = Path(folder) / "sign", threading.Event()
    if engine.is_first_stage():
        inner = engine.module.forward_funcs[0]

        def patient(given):
            deadline = time.monotonic() + 30
            while not sign.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            assert sign.exists(), "the other rank's thread did not run"
            return inner(given)

        engine.module.forward_funcs[0] = patient
    else:
        def write():
            began.wait()
            time.sleep(0.3)
            sign.touch()

        threading.Thread(target=write).start()
    began.set()
    engine.train_batch(pipe_models.batches(0))


def test_other_threads_run_while_a_stage_waits_for_another(tmp_path):
    ranks.run(2, waiting, str(tmp_path))

"""State of pipelines: weights that stages share, checkpoints that any number of stages loads, keys and data."""

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import nn

deepspeed = pytest.importorskip("deepspeed", reason="needs the package deepspeed")

import pipe_models  # noqa: E402
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec  # noqa: E402
from pipe_models import config  # noqa: E402


def tied_layers():
    def head(embed, x):
        return x @ embed.weight.T

    return [TiedLayerSpec("embed", nn.Embedding, 10, 6), LayerSpec(nn.Linear, 6, 6), torch.relu, LayerSpec(nn.Linear, 6, 6),
            LayerSpec(nn.Tanh), TiedLayerSpec("embed", nn.Embedding, 10, 6, forward_fn=head)]


def tied(stages, stage, gas):
    torch.manual_seed(dist.get_rank())  # copies become equal by the engine
    model = PipelineModule(tied_layers(), num_stages=stages, loss_fn=pipe_models.loss_of, partition_method="uniform")
    if model.stage_id == 0 and stages > 1:
        assert [group.size() for _, group in model.get_tied_weights_and_groups()] == [2]
    settings = config(stage, gas=gas)
    settings["optimizer"] = {"type": "SGD", "params": {"lr": 0.5}}
    engine = pipe_models.engine_of(model, {**settings, "zero_allow_untested_optimizer": True})
    start = pipe_models.weights(engine)
    data = pipe_models.batches(engine.grid.get_data_parallel_rank(), steps=4, gas=gas)
    losses = [engine.train_batch(data).item() for _ in range(4)]
    norm = engine.get_global_grad_norm()
    return start, losses, pipe_models.weights(engine), norm


def whole_of(start, losses, gas, data=1):
    """The same with torch alone."""
    weights = {name: value.clone().requires_grad_() for name, value in start.items()}
    sources = [pipe_models.batches(rank, steps=4, gas=gas) for rank in range(data)]
    found = []
    for _ in losses:
        total = 0
        for source in sources:
            for _ in range(gas):
                tokens, labels = next(source)
                embed = weights["tied_modules.embed.weight"]
                x = nn.functional.linear(embed[tokens], weights["1.weight"], weights["1.bias"]).relu()
                x = nn.functional.linear(x, weights["3.weight"], weights["3.bias"]).tanh() @ embed.T
                total = total + pipe_models.loss_of(x, labels)
        total = total / (gas * data)
        grads = torch.autograd.grad(total, list(weights.values()))
        norm = torch.cat([grad.flatten() for grad in grads]).norm().item()
        found.append(total.item())
        with torch.no_grad():
            for value, grad in zip(weights.values(), grads):
                value -= 0.5 * grad
    return found, weights, norm


@pytest.mark.parametrize("stages, data, stage", [(2, 1, 0), (3, 1, 1), (2, 2, 2), (2, 2, 3)])
def test_tied_layers_on_several_stages_train_as_one(stages, data, stage):
    results = ranks.run(stages * data, tied, stages, stage, 2)
    start = {name: value for each in reversed(results) for name, value in each[0].items()}
    copies = [each[2]["tied_modules.embed.weight"] for each in results if "tied_modules.embed.weight" in each[2]]
    assert len(copies) == 2 * data and all(torch.equal(copy, copies[0]) for copy in copies)
    losses, weights, norm = whole_of(start, results[0][1], 2, data)
    for rank, (_, found, own, own_norm) in enumerate(results):
        assert found == pytest.approx(losses, rel=1e-5) and own_norm == pytest.approx(norm, rel=1e-4)
        for name, value in own.items():
            torch.testing.assert_close(value, weights[name].detach(), rtol=1e-5, atol=1e-6)


# Checkpoints

def trained(stages, stage, folder, load, save):
    """Losses of two steps, after a load and before a save where that is asked for."""
    engine = pipe_models.engine_of(pipe_models.piped(stages), config(stage, scheduler={
        "type": "WarmupLR", "params": {"warmup_num_steps": 10}}))
    data = pipe_models.batches(engine.grid.get_data_parallel_rank(), steps=4)
    if load:
        path, client = engine.load_checkpoint(folder)
        assert client == {"note": 7} and engine.global_steps == 2
        for _ in range(2 * pipe_models.GAS):
            next(data)
    losses = [engine.train_batch(data).item() for _ in range(2)]
    if save:
        engine.save_checkpoint(folder, client_state={"note": 7})
        losses += [engine.train_batch(data).item() for _ in range(2)]
    return losses, pipe_models.weights(engine), engine.get_lr()


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_a_checkpoint_of_stages_loads_at_any_number_of_them(tmp_path, stage):
    saved = ranks.run(4, trained, 2, stage, str(tmp_path), False, True)
    for world, stages in ((4, 2), (2, 1), (4, 4)):
        loaded = ranks.run(world, trained, stages, stage if stages < 4 else 1, str(tmp_path), True, False)
        weights = {name: value for each in saved for name, value in each[1].items()}
        for losses, own, rates in loaded:
            if stages < 4:  # the same data on as many data-parallel ranks
                assert losses == saved[0][0][2:] and all(torch.equal(own[name], weights[name]) for name in own)
            assert rates == saved[0][2]


def exported(folder, stage):
    from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine
    engine = pipe_models.engine_of(pipe_models.piped(2), config(stage))
    engine.train_batch(pipe_models.batches(engine.grid.get_data_parallel_rank()))
    engine.save_16bit_model(folder)
    engine.module.save_state_dict(folder + "/layers", TorchCheckpointEngine())
    own = pipe_models.weights(engine)
    dist.barrier()
    other = pipe_models.piped(4, seed_layers=False)
    other.load_state_dir(folder + "/layers", TorchCheckpointEngine())
    return own, {name: param.detach().clone() for name, param in other.named_parameters()}


@pytest.mark.parametrize("stage", [1, 3])
def test_weights_of_all_stages_become_one_file_or_one_per_layer(tmp_path, stage):
    results = ranks.run(4, exported, str(tmp_path), stage)
    weights = {name: value for own, _ in results for name, value in own.items()}
    stored = torch.load(tmp_path / "pytorch_model.bin")
    assert set(stored) == set(weights) and all(torch.equal(stored[name], weights[name]) for name in weights)
    assert len(list((tmp_path / "layers").glob("layer_0*-model_states.pt"))) == 6
    for _, loaded in results:
        assert loaded and all(torch.equal(loaded[name], weights[name]) for name in loaded)


def taken_over(stage):
    """Weights before and after an engine gives its model to the next one, which loses nothing and trains on."""
    module = pipe_models.piped(2)
    first = pipe_models.engine_of(module, config(stage))
    data = pipe_models.batches(first.grid.get_data_parallel_rank(), steps=2)
    first.train_batch(data)
    before = pipe_models.weights(first)
    first.close()
    second = pipe_models.engine_of(module, config(stage))
    after = pipe_models.weights(second)
    assert second.train_batch(data).item() < 10
    return before, after


@pytest.mark.parametrize("stage", [1, 3])
def test_the_next_engine_takes_over_the_stages_of_a_closed_one(stage):
    for before, after in ranks.run(4, taken_over, stage):
        assert before and all(torch.equal(before[name], after[name]) for name in before)


# Keys, data and reports

def elsewhere():
    """What is said where a model is in one piece."""
    import logging

    import capstan
    lines, settings = [], {"pipeline": {"activation_checkpoint_interval": 1}}
    for logger in (deepspeed.utils.logging.logger, logging.getLogger("capstan")):
        logger.addFilter(lambda record, name=logger.name: lines.append(f"{name}: {record.getMessage()}") or True)
    pipe_models.engine_of(nn.Linear(2, 2), config(**settings)).destroy()
    model = nn.Linear(2, 2)
    capstan.initialize(model, {"train_batch_size": 1, **settings}, optimizer=torch.optim.SGD(model.parameters(), lr=1)).close()
    with pytest.raises(ValueError, match="a Linear cannot be cut into stages"):
        pipe_models.engine_of(nn.Linear(2, 2), config(pipeline={"stages": 2}))
    return [line for line in lines if "the model is in one piece: that has no effect" in line]


def test_keys_of_pipelines_are_not_taken_in_silence_elsewhere():
    deepspeed_says, capstan_says = ranks.run(1, elsewhere)[0]
    assert capstan_says.startswith("capstan: ") and not deepspeed_says.startswith("capstan: ")


class Counts(nn.Module):
    """Says the mean of its input as a second loss."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x)


class Reporting(PipelineModule):
    def get_additional_losses(self):
        return {"level": torch.tensor(2.0 if self.stage_id == 1 else -1.0)}


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, at):
        return torch.full((4,), float(at)), torch.full((4,), float(at))


def on_own_data():
    from deepspeed.utils import RepeatingLoader
    deepspeed.utils.logging.set_log_level_from_string("info")
    lines = []
    deepspeed.utils.logging.logger.addFilter(lambda record: lines.append(record.getMessage()) or True)
    seen = []

    def loss(output, labels):
        seen.append(labels[:, 0].tolist())
        return (output - labels).square().mean()

    model = Reporting([LayerSpec(Counts), LayerSpec(Counts)], num_stages=2, loss_fn=loss, partition_method="uniform")
    settings = config(gas=2, steps_per_print=1)
    engine, _, loader, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings,
                                                training_data=Numbers())
    engine.train_batch()
    engine.train_batch()
    assert engine.get_additional_losses() == {"level": torch.tensor(2.0)}
    assert engine.is_first_stage() == (dist.get_rank() == 0) and engine.is_last_stage() == (dist.get_rank() == 1)
    assert not engine.is_gradient_accumulation_boundary() and engine.num_micro_batches == 2
    engine.set_dataloader(RepeatingLoader([(torch.ones(2, 4), torch.zeros(2, 4))]))
    engine.set_batch_fn(lambda batch: (batch[0], batch[1] + 9))
    engine.train_batch()
    engine.mem_status("after all")
    return seen, lines


def test_data_of_the_engine_comes_in_order_and_reports_name_the_losses():
    (first, lines), (seen, last_lines) = ranks.run(2, on_own_data)
    assert first == [] and seen == [[0, 1], [2, 3], [4, 5], [0, 1], [9, 9], [9, 9]]
    assert any("stage=1 layers=1" in line and "Counts" in line for line in lines)
    assert any(line.startswith("RANK=0 STAGE=0 LAYERS=1 [0, 1) STAGE_PARAMS=20") and "TOTAL_PARAMS=40" in line for line in lines)
    assert any("RANK=1 STAGE=1" in line and "after all" in line for line in last_lines)
    assert any("steps: 2 loss: " in line and "level: 2.0000 iter time" in line for line in lines)

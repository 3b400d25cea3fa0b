"""The package capstan is complete by itself: everything here runs without `deepspeed`, and gives what a plain loop of torch
gives. Ranks are started from a process of its own, in which nobody else has imported that package."""

import os
import subprocess
import sys
import tempfile

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import nn

import capstan

STEPS, MICRO, SAVED_AFTER = 5, 2, 2
RATES = {"lr": 1e-2, "weight_decay": 0.01}


class Model(nn.Module):
    """Two layers of one weight, a frozen one, and a buffer."""

    def __init__(self):
        super().__init__()
        self.first, self.tied, self.frozen = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8).requires_grad_(False)
        self.tied.weight = self.first.weight
        self.register_buffer("scale", torch.full((1,), 0.5))

    def forward(self, x):
        return self.frozen(torch.tanh(self.tied(torch.tanh(self.first(x)))) * self.scale)


def built():
    torch.manual_seed(0)
    return Model()


def batch(step, micro, rank):
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + 10 * micro + rank))


def schedule_of(optimizer):
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)


def plain(world):
    """(losses, gradients and first moments of the last step, weights) of a loop over the batches of all ranks."""
    model = built()
    optimizer = torch.optim.AdamW(model.parameters(), **RATES)
    schedule, losses = schedule_of(optimizer), []
    for step in range(STEPS):
        optimizer.zero_grad()
        for micro in range(MICRO):
            loss = sum(model(batch(step, micro, rank)).square().mean() for rank in range(world)) / world
            (loss / MICRO).backward()
            losses.append(loss.item())
        optimizer.step()
        schedule.step()
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    return (losses, {n: p.grad for n, p in trained.items()}, {n: optimizer.state[p]["exp_avg"] for n, p in trained.items()},
            {n: v.clone() for n, v in model.state_dict().items()})


def made(stage, kind, context=None):
    config = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": MICRO,
              "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}}
    if context is not None:
        with context(config):
            model = built()
    else:
        model = built()
    optimizer = (torch.optim if kind == "torch" else capstan.optimizers).AdamW(model.parameters(), **RATES)
    return capstan.initialize(model, config, optimizer=optimizer, lr_scheduler=schedule_of(optimizer))


def trained_params(engine):
    return [(n, p) for n, p in engine.module.named_parameters() if p.requires_grad]


def change_and_restore(param, name, value):
    """Whole, then each rank its elements: what was written is read, and the old values come back."""
    mine = capstan.read_local_state(param, name).clone()
    capstan.write_state(param, name, torch.zeros_like(value))
    assert not capstan.read_state(param, name).any()
    capstan.write_local_state(param, name, mine)
    assert torch.equal(capstan.read_state(param, name), value)


def train(engine, first=0, save_to=None):
    """Losses over all ranks, and the gradients of the last step. States are changed, put back and moved away on the way."""
    losses, gradients = [], {}
    for step in range(first, STEPS):
        for micro in range(MICRO):
            loss = engine(batch(step, micro, dist.get_rank())).square().mean()
            if micro == 0:
                with engine.no_sync():
                    engine.backward(loss)
            else:
                engine.backward(loss)
            if micro == MICRO - 1:
                gradients = {n: capstan.read_state(p, "gradient").clone() for n, p in trained_params(engine)}
                change_and_restore(engine.module.first.weight, "gradient", gradients["first.weight"])
                engine.offload_states(["lp_grads", "optim_states"])
                assert "lp_grads" in engine.core.offloaded_states
                engine.reload_states()
                assert engine.core.offloaded_states == []
            engine.step()
            total = loss.detach().clone()
            dist.all_reduce(total)
            losses.append(total.item() / dist.get_world_size())
        engine.lr_scheduler.step()
        for name in ("exp_avg", "master"):
            weight = engine.module.first.weight
            change_and_restore(weight, name, capstan.read_state(weight, name).clone())
        if step + 1 == SAVED_AFTER and save_to is not None:
            engine.save_checkpoint(save_to, client_state={"epoch": (step, "of"), "seen": torch.arange(3)})
    return losses, gradients


def same(got, expected):
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, atol=1e-5, rtol=1e-4, msg=name)


def check_weights(engine, folder, expected):
    """Out of the engine, as files, and out of a checkpoint."""
    whole = engine.whole_weights()
    engine.save_weights(f"{folder}/out/weights.bin")
    engine.save_checkpoint(folder, tag="last", save_latest=False)
    assert (whole is None) == (dist.get_rank() > 0)
    if whole is None:
        return
    same(whole, expected)
    assert set(whole) == set(expected) and whole["tied.weight"] is whole["first.weight"]
    stored = capstan.StoredWeights(folder, "last")
    capstan.export_weights(stored, f"{folder}/exported", max_file_bytes=400)
    parts = [torch.load(f"{folder}/exported/{file}", weights_only=True)
             for file in sorted(os.listdir(f"{folder}/exported")) if file.endswith(".bin")]
    for read in (torch.load(f"{folder}/out/weights.bin", weights_only=True), stored, {n: v for p in parts for n, v in p.items()}):
        assert set(read) == set(expected) and all(torch.equal(read[name], whole[name]) for name in expected)
    assert len(parts) > 1


def resumed(stage, kind, folder, losses, weights):
    """An engine that was saved in the middle ends in the same bits."""
    engine = made(stage, kind)
    assert engine.load_checkpoint(f"{folder}/none") is None
    found = engine.load_checkpoint(folder)
    assert found.folder.endswith(f"global_step{SAVED_AFTER}") and found.client_state["epoch"] == (1, "of")
    assert found.client_state["seen"].tolist() == [0, 1, 2] and engine.core.progress.steps == SAVED_AFTER
    assert engine.lr_scheduler.last_epoch == SAVED_AFTER
    assert train(engine, SAVED_AFTER)[0] == losses[SAVED_AFTER * MICRO:]
    again = engine.whole_weights()
    assert again is None or all(torch.equal(again[name], value) for name, value in weights.items())


def one_rank(stage, kind, folder, expected):
    plain_losses, plain_gradients, plain_moments, plain_weights = expected
    engine = made(stage, kind)
    losses, gradients = train(engine, save_to=folder)
    assert losses == pytest.approx(plain_losses, abs=1e-5)
    same(gradients, plain_gradients)
    same({n: capstan.read_state(p, "exp_avg") for n, p in trained_params(engine)}, plain_moments)
    same({n: capstan.read_state(p, "master") for n, p in trained_params(engine)}, {n: plain_weights[n] for n in plain_moments})
    check_weights(engine, folder, plain_weights)
    resumed(stage, kind, folder, losses, engine.whole_weights() or {})
    for stranger in (nn.Parameter(torch.ones(2)), engine.module.frozen.weight):
        with pytest.raises(capstan.ConfigError, match="no open engine trains it"):
            capstan.read_state(stranger, "master")
    of_the_configuration(stage, folder)
    if stage == 3:
        assert train(made(stage, kind, capstan.sharded))[0] == losses
    assert "deepspeed" not in sys.modules


def of_the_configuration(stage, folder):
    """An optimizer and a schedule that only the configuration names."""
    section = {"optimizer": {"type": "AdamW", "params": RATES}, "train_micro_batch_size_per_gpu": 4,
               "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 3, "warmup_max_lr": 1e-2, "warmup_type": "linear"}},
               "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}}
    engine, model = capstan.initialize(built(), section), built()
    optimizer, rates = torch.optim.AdamW(model.parameters(), **RATES), []
    for step in range(STEPS):
        engine.backward(engine(batch(step, 0, dist.get_rank())).square().mean())
        report = engine.step()
        optimizer.param_groups[0]["lr"], = report.lr
        optimizer.zero_grad()
        (sum(model(batch(step, 0, rank)).square().mean() for rank in range(dist.get_world_size())) / dist.get_world_size()).backward()
        optimizer.step()
        assert report.boundary and report.applied
        rates += report.lr
    assert rates == sorted(rates) and rates[0] < 1e-2 and rates[-1] == pytest.approx(1e-2)
    assert (engine.progress.steps, engine.progress.skipped, engine.progress.samples) == (STEPS, 0, STEPS * 4 * dist.get_world_size())
    moments = {n: capstan.read_state(p, "exp_avg") for n, p in trained_params(engine)}
    same(moments, {n: optimizer.state[p]["exp_avg"] for n, p in model.named_parameters() if p.requires_grad})
    engine.save_checkpoint(folder, tag="configured", save_latest=False)
    after = capstan.initialize(built(), section)
    after.load_checkpoint(folder, "configured")
    assert after.progress.steps == STEPS
    assert all(torch.equal(capstan.read_state(p, "exp_avg"), moments[n]) for n, p in trained_params(after))


def main(world):
    expected = plain(world)
    for stage in range(4):
        for kind in ("own", "torch"):
            with tempfile.TemporaryDirectory() as folder:
                ranks.run(world, one_rank, stage, kind, folder, expected)
    assert "deepspeed" not in sys.modules


@pytest.mark.parametrize("world", [1, 2])
def test_what_an_engine_does_needs_no_other_package_and_is_what_a_plain_loop_does(world):
    subprocess.run([sys.executable, __file__, str(world)], check=True, timeout=600)


if __name__ == "__main__":
    main(int(sys.argv[1]))

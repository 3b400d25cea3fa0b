"""States that leave the device for a while: deepspeed's offload_states() and reload_states()."""

import pytest
import ranks
import torch

KINDS = [None, ["optim_states"], ["hp_params", "lp_grads"], ["lp_params"], ["contiguous_grad_buffer"]]


def losses(stage, own_optimizer, kinds):
    """Of a few steps; with kinds, states leave before every forward and every step."""
    import deepspeed
    from deepspeed.runtime.zero.offload_states import get_state_devices
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4))
    config = {"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True},
              "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}}
    optimizer = None
    if own_optimizer:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        config["zero_allow_untested_optimizer"] = True
    else:
        config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-2}}
    engine = deepspeed.initialize(model=model, model_parameters=model.parameters(), optimizer=optimizer, config=config)[0]

    def leave(include):
        if include is not False:
            engine.offload_states(include=include, non_blocking=True)
            for kind in include or ["optim_states", "hp_params"]:
                if kind != "contiguous_grad_buffer":
                    assert get_state_devices(engine, kind) == {torch.device("cpu")}

    seen = []
    for step in range(3):
        torch.manual_seed(step)
        leave(kinds)
        loss = engine(torch.randn(4, 16, dtype=torch.bfloat16)).float().square().mean()
        engine.backward(loss)
        leave(kinds)
        engine.reload_states()
        assert engine.core.offloaded_states == []
        leave(kinds)
        engine.step()
        seen.append(loss.item())
    weights = deepspeed.utils.safe_get_full_fp32_param(next(model.parameters()))
    return seen, weights.tolist()


def compared(own_optimizer):
    for stage in (0, 1, 2, 3):
        plain = losses(stage, own_optimizer, False)
        for kinds in KINDS:
            assert losses(stage, own_optimizer, kinds) == plain, (stage, kinds)


@pytest.mark.parametrize("own_optimizer", [False, True], ids=["kernels", "torch"])
def test_training_goes_on_in_the_same_bits(own_optimizer):
    ranks.run(2, compared, own_optimizer)


def looked_at(stage):
    """Gradients and masters that are away are read where they are."""
    import deepspeed
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Linear(64, 4))
    engine, optimizer, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(),
        config={"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True}, "optimizer": {"type": "AdamW"},
                "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}})
    engine.backward(engine(torch.ones(4, 16, dtype=torch.bfloat16)).float().square().mean())

    def look():
        gradients = [part for parts in optimizer.averaged_gradients.values() for part in parts]
        return [part.clone() for part in (*gradients, *optimizer.fp32_partitioned_groups_flat)]

    before = look()
    assert sum(part.abs().sum() for part in before[:4]) > 0
    for kinds in (["lp_grads"], ["hp_params", "lp_grads"], None):
        engine.offload_states(include=kinds)
        away = engine.core.offloaded_states
        assert "lp_grads" in away
        assert all(torch.equal(part, old) for part, old in zip(look(), before, strict=True))
        assert engine.core.offloaded_states == away
    engine.reload_states()
    assert all(torch.equal(part, old) for part, old in zip(look(), before, strict=True))
    engine.step()
    assert engine.was_step_applied()


def looked_at_everywhere():
    for stage in (1, 2, 3):
        looked_at(stage)


def test_a_look_at_gradients_that_are_away_leaves_them_there():
    ranks.run(2, looked_at_everywhere)


def mistakes():
    import capstan
    import deepspeed
    model = torch.nn.Linear(4, 4)
    engine = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                  config={"train_batch_size": 1, "optimizer": {"type": "AdamW"}})[0]
    with pytest.raises(ValueError, match="NVMe"):
        engine.offload_states(device="nvme")
    engine.offload_states(device="none")
    assert engine.core.offloaded_states == []
    with pytest.raises(capstan.ConfigError) as error:
        engine.offload_states(include=["optim_state"])
    assert "optim_state" in error.value.what and "optim_states" in error.value.fix
    engine.close()
    with pytest.raises(capstan.ConfigError, match="closed"):
        engine.reload_states()


def test_mistakes_are_told():
    ranks.run(1, mistakes)

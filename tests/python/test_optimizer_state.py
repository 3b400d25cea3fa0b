"""What optimizer.state shows, and what becomes of state that an optimizer has before an engine takes it."""

import copy

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import nn

deepspeed = pytest.importorskip("deepspeed", reason="needs the package deepspeed")

KINDS = {"torch": lambda params: torch.optim.AdamW(params, lr=0.01, weight_decay=0.1),
         "kernel": lambda params: deepspeed.ops.adam.FusedAdam(params, lr=0.01, weight_decay=0.1),
         "sgd": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9)}


def config(stage, dtype=None):
    return {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0, "zero_allow_untested_optimizer": True,
            "bf16": {"enabled": dtype == torch.bfloat16},
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}}


def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def batch(step):
    return torch.ones(2, 5) * (step + 1)


def bare(model, optimizer, steps):
    for step in steps:
        model(batch(step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def carry_on(kind, stage):
    """Two bare steps, then two in an engine; whole weights."""
    model = make()
    optimizer = KINDS[kind](model.parameters())
    bare(model, optimizer, range(2))
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config(stage))
    for step in range(2, 4):
        engine.backward(engine(batch(step)).square().mean())
        engine.step()
    return [deepspeed.utils.safe_get_full_fp32_param(p) for p in model.parameters()]


def carry_on_everywhere():
    for kind in KINDS:
        model = make()
        bare(model, KINDS[kind](model.parameters()), range(4))
        expected = list(model.parameters())
        for stage in (0, 1, 2, 3):
            got = carry_on(kind, stage)
            assert all(torch.allclose(p, q, atol=2e-6) for p, q in zip(got, expected)), (kind, stage)


@pytest.mark.parametrize("world", [1, 2])
def test_state_from_before_goes_on_in_the_engine(world):
    ranks.run(world, carry_on_everywhere)


class Rows(torch.optim.Optimizer):
    """Keeps one value for each row."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})
        for param in self.param_groups[0]["params"]:
            self.state[param]["row"] = torch.ones(len(param) + 1)

    def step(self, closure=None):
        pass


def refuse_rows():
    import capstan
    model = make()
    with pytest.raises(capstan.ConfigError, match="state 'row' of 8 elements for a parameter of 35"):
        deepspeed.initialize(model=model, optimizer=Rows(model.parameters()), config=config(1))


def test_state_that_cannot_be_cut_is_refused():
    ranks.run(2, refuse_rows)


def shown(kind, dtype):
    """Counters and states by every key that scripts use, at stage 3."""
    model = make()
    optimizer = KINDS[kind](model.parameters())
    engine, wrapped, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config(3, dtype))
    for step in range(3):
        engine.backward(engine(batch(step).to(dtype)).float().square().mean())
        engine.step()
    assert wrapped.state is optimizer.state
    for param in model.parameters():
        assert param in wrapped.state and int(wrapped.state[param]["step"]) == engine.global_steps == 3
    own = 0
    for flat, params in zip(wrapped.fp32_partitioned_groups_flat, wrapped.fp16_groups):
        state = wrapped.optimizer.state[flat]
        assert flat in wrapped.state and int(state["step"]) == 3
        assert state["exp_avg"].shape == flat.shape and state["exp_avg"].abs().sum() > 0
        own += flat.numel()
        mine = [deepspeed.utils.safe_get_local_optimizer_state(p, "exp_avg") for p in params]
        mine = torch.cat([part.flatten() for part in mine if part is not None])
        assert torch.equal(mine, state["exp_avg"])
    total = torch.tensor(own)
    dist.all_reduce(total)
    assert total == sum(p.ds_numel for p in model.parameters())
    stranger = nn.Parameter(torch.ones(2))
    assert stranger not in wrapped.state and wrapped.state[stranger] == {}  # as any optimizer's
    del wrapped.state[stranger]
    assert copy.deepcopy(optimizer.state_dict()["state"])
    engine.destroy()


def shown_everywhere():
    for kind in ("torch", "kernel"):
        for dtype in (torch.float32, torch.bfloat16):
            shown(kind, dtype)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_states_at_stage_3_are_found_by_parameter_and_by_flat_group(world):
    ranks.run(world, shown_everywhere)


def group_norms(stage):
    """At stage 0 every rank holds all of a gradient, and counts it once."""
    model = make()
    groups = [{"params": list(model[i].parameters())} for i in (0, 2)]
    engine = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(groups, lr=0.1),
                                  config=config(stage, torch.bfloat16))[0]
    engine.backward(engine(batch(0).bfloat16()).square().mean())
    whole = [torch.cat([deepspeed.utils.safe_get_full_grad(p).flatten() for p in engine.module[i].parameters()]).norm()
             for i in (0, 2)]
    norms = engine.optimizer._get_norm_groups()
    assert all(norm.shape == () for norm in norms)
    torch.testing.assert_close(torch.stack(norms), torch.stack(whole), rtol=1e-4, atol=0)
    return True


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_norms_of_groups_are_those_of_their_whole_gradients(stage):
    assert ranks.run(2, group_norms, stage) == [True] * 2


def equal_parts():
    model = make()  # 66 elements
    engine = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
                                  config=config(1))[0]
    [flat], [parts] = engine.optimizer.bit16_groups_flat, engine.optimizer.parallel_partitioned_bit16_groups
    assert [part.numel() for part in parts] == [18, 18, 18, 18]  # an even number each
    assert torch.equal(torch.cat(parts), nn.functional.pad(flat, (0, 6)))
    return True


def test_parts_of_a_group_are_equal_and_filled_up():
    assert ranks.run(4, equal_parts) == [True] * 4


def equal_slices():
    with deepspeed.zero.Init():
        model = nn.Linear(5, 7)
    return model.weight.partition_numel(), model.bias.partition_numel(), model.bias.padding_size()


def test_slices_of_a_parameter_are_equal():
    assert ranks.run(3, equal_slices) == [(12, 3, 2)] * 3

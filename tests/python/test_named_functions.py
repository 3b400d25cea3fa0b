"""Functions that scripts call by name: each test fails if its function does nothing."""

import argparse
import functools
import json

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import nn

deepspeed = pytest.importorskip("deepspeed", reason="needs the package deepspeed")

from deepspeed import utils  # noqa: E402
from deepspeed.runtime.zero.stage3 import (estimate_zero3_model_states_mem_needs,  # noqa: E402
                                           estimate_zero3_model_states_mem_needs_all_live, model_to_params)
from deepspeed.runtime.zero.stage_1_and_2 import (estimate_zero2_model_states_mem_needs,  # noqa: E402
                                                  estimate_zero2_model_states_mem_needs_all_live)


def config(stage, optimizer=("SGD", {"lr": 1.0}), **more):
    return {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0, "zero_allow_untested_optimizer": True,
            "optimizer": {"type": optimizer[0], "params": optimizer[1]},
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}, **more}


def make(model, stage, **more):
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config(stage, **more))[0]


# Estimators

GIB = 2**30


def test_estimates_are_those_of_the_published_tables():
    total, layer = 2851 * 10**6, 32 * 10**6
    host, device = estimate_zero2_model_states_mem_needs(total, num_gpus_per_node=8, cpu_offload=True)
    assert (round(host / GIB, 2), round(device / GIB, 2)) == (127.45, 5.31)
    host, device = estimate_zero2_model_states_mem_needs(total, num_gpus_per_node=8, cpu_offload=False)
    assert (round(host / GIB, 2), round(device / GIB, 2)) == (127.45, 11.28)
    three = [estimate_zero3_model_states_mem_needs(total, layer, 8, 1, optimizer, params, early)
             for optimizer, params in ((True, True), (True, False), (False, False)) for early in (True, False)]
    rounded = [tuple(round(value / GIB, 2) for value in each) for each in three]
    assert rounded == [(71.69, 0.12, 0.12), (127.45, 0.12, 0.12), (63.72, 0.78, 0.12), (127.45, 0.78, 0.12),
                       (1.43, 6.09, 0.12), (127.45, 6.09, 0.12)]


def live_estimates():
    with deepspeed.zero.Init(config_dict_or_path=config(3)):
        model = nn.Sequential(nn.Linear(1000, 2000), nn.Linear(2000, 1000))
    return model_to_params(model)


def test_live_estimates_count_a_model_whole_or_sharded(capsys):
    model = nn.Sequential(nn.Linear(1000, 2000), nn.Linear(2000, 1000, bias=False))
    model.append(nn.Linear(2000, 1000, bias=False))
    model[2].weight = model[1].weight
    assert model_to_params(model) == (4002000, 2002000)
    assert ranks.run(2, live_estimates) == [(4003000, 2002000)] * 2
    estimate_zero2_model_states_mem_needs_all_live(model, num_gpus_per_node=4, num_nodes=2)
    text = capsys.readouterr().out
    assert "2 nodes, 4 GPUs per node" in text and "4M total params" in text and text.count("offload_optimizer=") == 2
    estimate_zero3_model_states_mem_needs_all_live(model)
    text = capsys.readouterr().out
    assert "2M largest layer params" in text and text.count("zero_init=") == 6


# TiledLinear


def tiled(stage):
    torch.manual_seed(0)
    plain = nn.Linear(10, 6)
    model = deepspeed.zero.TiledLinear(10, 6, in_splits=2, out_splits=3, init_linear=plain)
    x = torch.randn(2, 10)
    assert torch.allclose(model(x), plain(x), atol=1e-6)
    engine = make(model, stage, optimizer=("AdamW", {"lr": 0.01}))
    losses = []
    for _ in range(3):
        loss = engine(x).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    units = [name for name, used in engine.core.boundaries() if used]
    return losses, units


def tiled_everywhere():
    (plain, _), (sharded, units) = tiled(0), tiled(3)
    assert sharded == plain and plain[-1] < plain[0]
    assert [name for name in units if name.count(".") == 2] == [f"linears.{i}.{j}" for i in range(3) for j in range(2)]
    with pytest.raises(RuntimeError, match="splits"):
        deepspeed.zero.TiledLinear(10, 6, in_splits=11)


def test_a_tiled_layer_is_the_layer_in_units_of_its_tiles():
    ranks.run(2, tiled_everywhere)


# register_external_parameter


class Borrowing(nn.Module):
    """Uses a weight that it was handed, without going through the module that has it."""

    def __init__(self, weight):
        super().__init__()
        self.own, self._borrowed = nn.Linear(4, 4), [weight]

    def forward(self, x):
        return nn.functional.linear(self.own(x), self._borrowed[0])


class Lending(nn.Module):

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = Borrowing(self.first.weight)

    def forward(self, x):
        return self.second(self.first(x))


def external(stage):
    torch.manual_seed(0)
    model = Lending()
    deepspeed.zero.register_external_parameter(model.second, model.first.weight)
    engine = make(model, stage, optimizer=("AdamW", {"lr": 0.01}))
    losses = []
    for _ in range(3):
        loss = engine(torch.ones(2, 4)).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def external_everywhere():
    assert external(3) == external(0)
    model = Lending()
    with pytest.raises(RuntimeError, match="Parameter"):
        deepspeed.zero.register_external_parameter(model, torch.ones(2))


def test_a_registered_parameter_of_another_module_is_whole_where_it_is_used():
    ranks.run(2, external_everywhere)


# safe_set_*


def set_values(stage):
    torch.manual_seed(0)
    model = nn.Linear(3, 3, bias=False)
    engine = make(model, stage, optimizer=("AdamW", {"lr": 0.1}), bf16={"enabled": True})
    weight = model.weight
    step = lambda: (engine.backward(engine(torch.ones(2, 3).bfloat16()).float().square().sum()), engine.step())
    step()
    value = torch.arange(9.0).view(3, 3) / 7
    utils.safe_set_full_fp32_param(weight, value)
    assert torch.equal(utils.safe_get_full_fp32_param(weight), value)
    with deepspeed.zero.GatheredParameters([weight]):
        assert torch.equal(weight.data, value.bfloat16())
    utils.safe_set_full_optimizer_state(weight, value + 1, "exp_avg")
    assert torch.equal(utils.safe_get_full_optimizer_state(weight, "exp_avg"), value + 1)
    engine.backward(engine(torch.ones(2, 3).bfloat16()).float().square().sum())
    utils.safe_set_full_grad(weight, torch.zeros(3, 3))
    assert utils.safe_get_full_grad(weight).abs().sum() == 0
    utils.safe_set_full_optimizer_state(weight, torch.zeros(3, 3), "exp_avg")
    engine.step()
    assert torch.equal(utils.safe_get_full_fp32_param(weight), value)  # no momentum, no gradient: no change
    if stage == 3:
        utils.safe_set_local_fp32_param(weight, torch.ones_like(utils.safe_get_local_fp32_param(weight)))
        state = utils.safe_get_local_optimizer_state(weight, "exp_avg_sq")
        utils.safe_set_local_optimizer_state(weight, torch.full_like(state, 4), "exp_avg_sq")
        assert torch.equal(utils.safe_get_full_fp32_param(weight), torch.ones(3, 3))
        assert torch.equal(utils.safe_get_full_optimizer_state(weight, "exp_avg_sq"), torch.full((3, 3), 4.0))
        engine.backward(engine(torch.ones(2, 3).bfloat16()).float().square().sum())
        utils.safe_set_local_grad(weight, torch.full_like(utils.safe_get_local_grad(weight), 5))
        assert torch.equal(utils.safe_get_full_grad(weight), torch.full((3, 3), 5.0))
        engine.step()


def set_values_everywhere():
    for stage in (1, 2, 3):
        set_values(stage)


@pytest.mark.parametrize("world", [1, 2])
def test_values_that_are_set_by_name_are_the_ones_that_train(world):
    ranks.run(world, set_values_everywhere)


# add_config_arguments


def from_arguments(path):
    parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
    args = parser.parse_args(["--deepspeed", "--deepspeed_config", path])
    assert args.deepspeed
    model = nn.Linear(3, 3)
    engine = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())[0]
    with pytest.raises(AssertionError, match="two configurations"):
        deepspeed.initialize(args=args, model=nn.Linear(3, 3), config={"train_batch_size": 1})
    return engine.train_micro_batch_size_per_gpu(), engine.zero_optimization_stage()


def test_a_script_s_arguments_name_the_configuration(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({**config(2), "train_micro_batch_size_per_gpu": 7}))
    assert ranks.run(1, from_arguments, str(path)) == [(7, 2)]


# deepspeed.comm


def communicate():
    comm = deepspeed.comm
    rank, world = comm.get_rank(), comm.get_world_size()
    comm.configure(enabled=True, prof_all=True)
    value = torch.tensor([1.0 + rank])
    comm.all_reduce(value, op=comm.ReduceOp.SUM, prof=True, log_name="mine")
    whole = torch.zeros(world)
    comm.all_gather_into_tensor(whole, torch.tensor([float(rank)]))
    sent = torch.tensor([7.0 * (rank == 1)])
    comm.broadcast(sent, 1)
    part = torch.zeros(1)
    comm.reduce_scatter_tensor(part, torch.arange(float(world)))
    coalesced = [torch.tensor([1.0]), torch.tensor([2.0 * rank])]
    comm.all_reduce_coalesced(coalesced)
    comm.barrier()
    group = comm.new_group([0, 1])
    assert comm.get_global_rank(group, 1) == 1 and comm.get_all_ranks_from_group(group) == [0, 1]
    summary = comm.log_summary(return_dict=True)
    comm.configure(enabled=False, prof_all=False)
    return value.item(), whole.tolist(), sent.item(), part.item(), [t.item() for t in coalesced], str(summary)


def test_collectives_of_deepspeed_comm_and_their_log():
    for rank, (value, whole, sent, part, coalesced, summary) in enumerate(ranks.run(2, communicate)):
        assert (value, whole, sent, part, coalesced) == (3.0, [0.0, 1.0], 7.0, 2.0 * rank, [2.0, 2.0])
        assert "mine" in summary or "all_reduce" in summary


def communicate_by_engine(**more):
    engine = make(nn.Linear(3, 1, bias=False), 2, capstan={"reduce_schedule": "per_backward"}, steps_per_print=1, **more)
    for _ in range(3):
        engine.backward(engine(torch.ones(2, 3)).sum())
        engine.step()
    summary = deepspeed.comm.log_summary(return_dict=True)["summary"]
    reductions = {size: row["count"] for size, row in summary.get("reduce_scatter", {}).items()}
    measured = engine.core.progress.samples_per_second
    return reductions, engine.tput_timer.avg_samples_per_sec(), measured


def test_what_an_engine_communicates_is_in_the_log_and_its_speed_in_the_timer():
    logged = ranks.run(2, functools.partial(communicate_by_engine, comms_logger={"enabled": True}))
    for rank, (reductions, speed, measured) in enumerate(logged):
        (size, count), = reductions.items()
        assert count == 3 and size % 4 == 0 and size >= 2 * 4  # our half of three numbers, padded
        if rank == 0:  # where the log tells it
            assert speed == measured > 0
    assert ranks.run(2, communicate_by_engine)[0][0] == {}


# no_sync


def accumulate(stage):
    """Two backwards, of which the first stays on this rank: how many operations each puts on the wire."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1, bias=False)
    engine = make(model, stage, gradient_accumulation_steps=2, capstan={"reduce_schedule": "per_backward"})
    before = model.weight.detach().clone()

    def operations(micro):
        known = engine.core_group.recent_operations().count("\n")
        engine.backward(engine(torch.ones(2, 3) * (1 + dist.get_rank() + micro)).sum())
        return engine.core_group.recent_operations().count("\n") - known

    with engine.no_sync():
        found = [operations(0)]
        with pytest.raises(AssertionError, match="no_sync"):
            engine.step()
    engine.step()
    found.append(operations(1))
    engine.step()
    gradient = sum(2.0 * (1 + rank + micro) for rank in range(2) for micro in range(2)) / 4  # the mean of all backwards
    assert torch.allclose(model.weight, before - gradient)
    return found


def accumulate_everywhere():
    assert accumulate(0) == accumulate(1) == [0, 1]
    for stage in (2, 3):
        model = nn.Linear(2, 2)
        with pytest.raises(AssertionError, match="partitioning"):
            with make(model, stage).no_sync():
                pass


def test_no_sync_keeps_gradients_on_their_rank_until_the_last_backward():
    ranks.run(2, accumulate_everywhere)


# Accumulation

def boundaries():
    engine = make(nn.Linear(4, 4), 1, gradient_accumulation_steps=3)
    seen = []
    for _ in range(6):
        before = engine.module.weight.detach().clone()
        engine.backward(engine(torch.ones(2, 4)).sum())
        told = engine.is_gradient_accumulation_boundary()
        engine.step()
        seen.append((told, not torch.equal(before, engine.module.weight)))
    return seen


def test_the_boundary_of_accumulation_is_where_the_weights_move():
    assert ranks.run(1, boundaries) == [[(False, False), (False, False), (True, True)] * 2]


def test_experts_groups_are_those_of_deepspeed():
    from deepspeed.utils.groups import _get_expert_parallel_ranks
    experts, copies = _get_expert_parallel_ranks(16, 2, 4)
    assert experts == [[0, 2, 4, 6], [8, 10, 12, 14], [1, 3, 5, 7], [9, 11, 13, 15]]
    assert copies == [[0, 8], [2, 10], [4, 12], [6, 14], [1, 9], [3, 11], [5, 13], [7, 15]]
    assert _get_expert_parallel_ranks(8, 1, 2, 2) == ([[0, 1], [2, 3], [4, 5], [6, 7]], [[0, 2], [1, 3], [4, 6], [5, 7]])
    assert _get_expert_parallel_ranks(6, 1, 2, 1, True) == ([[0, 3], [1, 4], [2, 5]], [[0, 1, 2], [3, 4, 5]])
    with pytest.raises(AssertionError, match="6 is not divisible by 4"):
        _get_expert_parallel_ranks(6, 1, 4)

"""Shard groups (MiCS) and a second copy of the parameters near by (hpZ), over groups of torch.distributed."""

import pytest
import ranks
import torch
import torch.distributed as dist
from test_stages import STEPS, Tied, batches, loss_of

import capstan
from capstan import process_group


def train(zero, more=(), engines=1):
    for _ in range(engines):  # one after another
        torch.manual_seed(0)
        engine = capstan.initialize(Tied(), {"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0,
                                             "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "eps": 1e-3}},
                                             "zero_optimization": {"stage3_param_persistence_threshold": 0, **zero}, **dict(more)})
        for batch in batches(dist.get_rank()):
            engine.backward(loss_of(engine, batch))
            engine.step()
        assert (engine.core.progress.steps, engine.core.progress.skipped) == (STEPS, 0)
        with capstan.gathered(engine.module):
            weights = {n: p.detach().clone() for n, p in engine.module.named_parameters()}
        engine.close()
    made = sum(len(parts) for parts in process_group._parts.values())
    return weights, made


def equal(a, b):
    return all(torch.equal(value, b[name]) for name, value in a.items())


@pytest.mark.parametrize("stage", [1, 3])
def test_shard_groups_give_the_bits_of_a_plain_run_that_sums_in_their_order(stage):
    plain = ranks.run(4, train, {"stage": stage})
    hybrid = ranks.run(4, train, {"stage": stage, "mics_shard_size": 2})
    in_blocks = ranks.run(4, train, {"stage": stage}, {"capstan": {"reduce_in_blocks_of": 2}})
    for (mine, made), (same, _), (other, none) in zip(hybrid, in_blocks, plain):
        assert equal(mine, same)
        assert (made, none) == (2, 0)  # over shards and over replicas
        for name, value in mine.items():
            torch.testing.assert_close(value, other[name], atol=1e-5, rtol=1e-4)


def test_a_second_copy_gives_the_bits_of_stage_3():
    plain = ranks.run(4, train, {"stage": 3})
    near = ranks.run(4, train, {"stage": 3, "zero_hpz_partition_size": 2}, (), 2)
    for (mine, made), (other, _) in zip(near, plain):
        assert equal(mine, other)
        assert made == 1  # by two engines


def refused(zero):
    with pytest.raises(capstan.errors.ConfigError) as error:
        train(zero)
    return str(error.value)


def test_groups_that_do_not_divide_the_ranks_are_refused_by_their_key():
    for text in ranks.run(3, refused, {"stage": 3, "mics_shard_size": 2}):
        assert "3 ranks do not form groups of 2" in text and "zero_optimization.mics_shard_size" in text


def build_under_mics_init():
    import deepspeed

    config = {"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "eps": 1e-3}},
              "gradient_clipping": 0,
              "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0, "mics_shard_size": 2}}
    torch.manual_seed(0)
    with deepspeed.zero.MiCS_Init(config_dict_or_path=config):
        model = Tied()
    engine = deepspeed.initialize(model=model, config=config)[0]
    for batch in batches(dist.get_rank()):
        engine.backward(loss_of(engine, batch))
        engine.step()
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        return {n: p.detach().clone() for n, p in model.named_parameters()}


def test_a_model_built_under_mics_init_trains_the_same():
    expected = ranks.run(4, train, {"stage": 3, "mics_shard_size": 2})
    for mine, (weights, _) in zip(ranks.run(4, build_under_mics_init), expected):
        assert equal(mine, weights)

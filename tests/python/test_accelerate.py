"""Hugging Face Accelerate over our package `deepspeed`, unchanged: every stage against DDP."""

import copy

import pytest
import ranks
import torch
import torch.distributed as dist

accelerate = pytest.importorskip("accelerate", reason="needs the package accelerate")
transformers = pytest.importorskip("transformers", reason="needs the package transformers")

import hugging_face  # noqa: E402,F401  loads what the ranks need

VOCABULARY, STEPS, ACCUMULATION = 64, 3, 2
DTYPES = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def tiny_gpt2():
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=32, n_embd=32, n_layer=2, n_head=2,
                                     resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(config)


def loader():
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, VOCABULARY, (2 * ACCUMULATION * STEPS * dist.get_world_size(), 16), generator=generator)
    return torch.utils.data.DataLoader([{"input_ids": row, "labels": row} for row in tokens], batch_size=2)


def train_ddp():
    model = tiny_gpt2()
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    batches, losses = list(loader()), []
    mine = batches[dist.get_rank()::dist.get_world_size()]
    for i, batch in enumerate(mine):
        loss = ddp(**batch).loss
        (loss / ACCUMULATION).backward()
        losses.append(loss.item())
        if (i + 1) % ACCUMULATION == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return losses


def make_accelerator(stage, mixed="no", **more):
    from accelerate import Accelerator, DeepSpeedPlugin
    plugin = DeepSpeedPlugin(zero_stage=stage, gradient_accumulation_steps=ACCUMULATION, gradient_clipping=1.0,
                             zero3_init_flag=stage == 3, **more)
    return Accelerator(deepspeed_plugin=plugin, mixed_precision=mixed, step_scheduler_with_optimizer=True)


def train_accelerate(stage, mixed="no"):
    accelerator = make_accelerator(stage, mixed)
    assert accelerator.distributed_type == accelerate.DistributedType.DEEPSPEED
    model = tiny_gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    accelerator.step_scheduler_with_optimizer = True
    model, optimizer, data, schedule = accelerator.prepare(
        model, optimizer, loader(), torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step / dist.get_world_size())))
    losses = []
    for batch in data:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    state = accelerator.get_state_dict(model) if stage < 3 else None
    unwrapped = accelerator.unwrap_model(model)
    assert isinstance(unwrapped, transformers.GPT2LMHeadModel)
    assert {p.dtype for p in unwrapped.parameters()} == {DTYPES[mixed]} and model.global_steps == STEPS
    assert model.skipped_steps == 0
    return losses, {n: v.clone() for n, v in (state or {}).items()}


def count_processes(early):
    """Accelerate as in an ordinary script: nobody tells it the backend. `early`: it was asked before the ranks were known."""
    import os

    import capstan
    from accelerate import Accelerator, DeepSpeedPlugin, PartialState
    if early:
        rank = os.environ.pop("LOCAL_RANK")
        PartialState()
        os.environ["LOCAL_RANK"] = rank
    accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(zero_stage=2, gradient_accumulation_steps=ACCUMULATION))
    model = tiny_gpt2()
    prepared = model, torch.optim.AdamW(model.parameters()), loader()
    if early:
        with pytest.raises(capstan.ConfigError) as caught:
            accelerator.prepare(*prepared)
        return str(caught.value)
    model, _, data = accelerator.prepare(*prepared)
    assert accelerator.num_processes == dist.get_world_size() and accelerator.process_index == dist.get_rank()
    assert accelerator.distributed_type == accelerate.DistributedType.DEEPSPEED
    assert model.train_batch_size() == 2 * ACCUMULATION * dist.get_world_size()
    return [batch["input_ids"].tolist() for batch in data]


def test_accelerate_counts_the_cpu_processes_without_help():
    first, second = ranks.run(2, count_processes, False)
    assert len(first) == len(second) == ACCUMULATION * STEPS and first != second  # each has its own part of the data
    for text in ranks.run(2, count_processes, True):
        assert "Accelerate counts 1 process, torch.distributed 2" in text and "InitProcessGroupKwargs" in text


@pytest.mark.parametrize("world, stages", [(2, range(4)), (4, [1])])
def test_every_stage_trains_as_ddp_does(world, stages):
    expected = ranks.run(world, train_ddp)
    first = None
    for stage in stages:
        got = ranks.run(world, train_accelerate, stage)
        first = first or got
        for (losses, _), ddp, (losses0, _) in zip(got, expected, first):
            assert losses == pytest.approx(ddp, abs=2e-4)
            assert losses == losses0 or stage >= 2  # with accumulation, 2 and 3 reduce per backward
            assert losses == pytest.approx(losses0, abs=1e-5)


@pytest.mark.parametrize("mixed, stages", [("bf16", (1, 2, 3)), ("fp16", (2, 3))])
def test_16_bits_train_as_ddp_does_in_32_within_their_rounding(mixed, stages):
    expected = ranks.run(2, train_ddp)
    results = [ranks.run(2, train_accelerate, stage, mixed) for stage in stages]
    for got in results:
        for (losses, _), ddp, (last, _) in zip(got, expected, results[-1]):
            assert losses == pytest.approx(ddp, rel=0.02) and losses[-1] != losses[0]
            assert losses == pytest.approx(last, rel=1e-3)
    assert [losses for losses, _ in results[-1]] == [losses for losses, _ in results[-2]]  # stages 2 and 3: the same bits

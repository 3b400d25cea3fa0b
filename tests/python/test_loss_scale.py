"""fp16: the loss scale over steps that overflow, and losses that are themselves fp16."""

import pytest
import ranks
import torch
from torch import nn

deepspeed = pytest.importorskip("deepspeed", reason="needs the package deepspeed")

INF, NAN = float("inf"), float("nan")


def make(stage, optimizer="AdamW", model=None, **fp16):
    torch.manual_seed(0)
    model = nn.Linear(2, 2, bias=False) if model is None else model
    config = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": optimizer, "params": {"lr": 0.00015}},
              "fp16": {"enabled": True, **fp16}, "zero_optimization": {"stage": stage}}
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[:2]


def scales(stage, gradients, **options):
    """After each step whose gradient has this value."""
    engine, optimizer = make(stage, **options)
    found = []
    for steps, value in enumerate(gradients, 1):
        engine.backward((engine(torch.ones(1, 2).half()).float() * value).sum())
        engine.step()
        found.append(optimizer.cur_scale)
        assert optimizer.loss_scale_config.cur_iter == steps and optimizer.overflow == (value not in (0.01,))
        assert optimizer.loss_scale_config.cur_scale == optimizer.cur_scale == engine.optimizer.loss_scale
    assert optimizer.loss_scale_config.min_loss_scale == options.get("min_loss_scale", 1)
    return found


def at_every_overflow():
    """The same at every stage: of the first overflows as many are tolerated as the hysteresis says less one."""
    import capstan
    mixed = [INF, NAN, 0.01, 0.01, 0.01, -INF, INF]
    for optimizer in ("AdamW", "Lamb"):
        how = {"optimizer": optimizer, "loss_scale_window": 2, "initial_scale_power": 4}
        for stage in range(3 if optimizer == "Lamb" else 4):
            assert scales(stage, mixed, **how) == [16, 8, 8, 8, 16, 16, 8], stage
            assert scales(stage, mixed, **how, hysteresis=1) == [8, 4, 4, 4, 8, 4, 2], stage
            assert scales(stage, [INF] * 3, **how, min_loss_scale=4) == [16, 8, 4], stage
            with pytest.raises(capstan.Error, match="minimum"):
                scales(stage, [INF] * 8, **how)


def test_several_overflows_in_a_row_give_the_sequences_that_users_know():
    ranks.run(1, at_every_overflow)


def half_losses():
    """A loss in fp16 whose product with the scale is no number of fp16, nor is the scale itself."""
    for stage in (0, 2, 3):
        engine, _ = make(stage)  # from 2^16
        loss = engine(torch.full((1, 2), 0.25).half()).sum().abs() + 3
        assert loss.dtype == torch.float16
        scaled = engine.scale(loss)
        assert scaled.dtype == torch.float32 and scaled.item() == loss.item() * 2**15  # the gradients get the rest
        scaled.backward()
        engine.step()
        assert engine.skipped_steps == 0
        engine.destroy()
    engine, _ = make(1, initial_scale_power=10)
    loss = engine(torch.ones(1, 2).half()).double().sum()
    assert engine.scale(loss).dtype == torch.float64


def test_a_scaled_loss_is_no_number_of_fp16():
    ranks.run(1, half_losses)


def blenderbot(stage, plain, offload):
    import transformers
    torch.manual_seed(0)
    model = transformers.BlenderbotForConditionalGeneration(transformers.BlenderbotConfig(
        vocab_size=64, d_model=32, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=64, decoder_ffn_dim=64,
        encoder_attention_heads=2, decoder_attention_heads=2, max_position_embeddings=32, dropout=0.0,
        attention_dropout=0.0, activation_dropout=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1)).half()  # with its buffer, which the logits are summed with
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0}
    if offload:
        zero["offload_optimizer"] = {"device": "cpu"}
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
        "train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        "fp16": {"enabled": True}, "zero_optimization": zero})
    tokens = torch.arange(24).view(2, 12) % 7 + 5 + torch.distributed.get_rank()
    losses = []
    for _ in range(8):
        loss = engine(input_ids=tokens, labels=tokens).loss / 8  # gradients of 1 and more have no place in fp16 at 2^16
        assert loss.dtype == torch.float16
        engine.scale(loss).backward() if plain else engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses, engine.skipped_steps, engine.optimizer.cur_scale


def train_blenderbot():
    results = {}
    for stage, offload in ((0, False), (2, True), (3, False)):
        both = [blenderbot(stage, plain, offload) for plain in (False, True)]
        assert both[0] == both[1], stage
        losses, skipped, scale = both[0]
        assert skipped == 0 and scale == 2**16, (stage, both)
        assert losses[-1] < 0.8 * losses[0], losses
        results[stage] = both[0]
    assert results[0] == results[2] == results[3]


def test_blenderbot_trains_in_fp16_from_the_default_scale():
    pytest.importorskip("transformers", reason="needs the package transformers")
    import hugging_face  # noqa: F401  loads what the ranks need
    ranks.run(2, train_blenderbot)


def schedule_of_a_script():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    config = {"train_batch_size": 1, "fp16": {"enabled": True, "initial_scale_power": 16, "hysteresis": 1}}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule, config=config)
    seen = []
    for factor in (1e4, 1e-3):  # the first one overflows
        engine.backward(engine(torch.ones(1, 4).half()).float().sum() * factor)
        engine.step()
        seen.append((engine.skipped_steps, engine.get_lr()[0]))
    return seen


def test_a_skipped_step_does_not_move_the_schedule_of_a_script():
    assert ranks.run(1, schedule_of_a_script) == [[(1, 1.0), (1, 0.5)]]

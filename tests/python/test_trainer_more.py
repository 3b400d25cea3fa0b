"""The Hugging Face Trainer: resume, prediction with generation, conflicts of its arguments with the configuration."""

import pytest
import ranks
import torch
import torch.distributed as dist

transformers = pytest.importorskip("transformers", reason="needs the package transformers")
pytest.importorskip("accelerate", reason="needs the package accelerate")

import hugging_face as base  # noqa: E402


def losses_of(folder, stage, part):
    """Of all four steps, of the first two, which are saved, or of all with the last two from that checkpoint."""
    args = base.arguments(folder, base.config_of(stage))
    if part == "first":
        args.save_strategy, args.save_steps, args.max_steps = "steps", 2, 2
    torch.manual_seed(0)
    trainer = transformers.Trainer(model=transformers.GPT2LMHeadModel(base.tiny_config()), args=args,
                                   train_dataset=base.data(32))
    trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-2" if part == "second" else None)
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("stage", [2, 3])
def test_a_resumed_run_gives_the_losses_of_an_uninterrupted_one(tmp_path, stage):
    whole, _, second = (ranks.run(2, losses_of, str(tmp_path), stage, part)[0] for part in ("whole", "first", "second"))
    assert second == pytest.approx(whole, abs=1e-6) and len(second) == 4


def tiny_seq2seq():
    torch.manual_seed(0)
    return transformers.BartForConditionalGeneration(transformers.BartConfig(
        vocab_size=32, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=32, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, forced_eos_token_id=2))


def predict(folder, stage):
    rows = torch.randint(3, 31, (8, 6), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row + 1} for row in rows]
    args = transformers.Seq2SeqTrainingArguments(
        output_dir=folder, deepspeed=base.config_of(stage), per_device_train_batch_size=2,
        per_device_eval_batch_size=2, max_steps=2, save_strategy="no", report_to=[], disable_tqdm=True,
        predict_with_generate=True, generation_max_length=10, generation_num_beams=2)
    trainer = transformers.Seq2SeqTrainer(model=tiny_seq2seq(), args=args, train_dataset=data, eval_dataset=data)
    trainer.train()
    result = trainer.predict(data)
    return result.predictions.tolist(), result.metrics["test_loss"]


def test_prediction_with_generation_is_the_same_at_stages_2_and_3(tmp_path):
    second, third = (ranks.run(2, predict, str(tmp_path), stage)[0] for stage in (2, 3))
    assert second[0] == third[0]
    assert second[1] == pytest.approx(third[1], abs=1e-5)


def conflicts(folder):
    config = base.config_of(3, train_micro_batch_size_per_gpu=7, gradient_clipping=0.3)
    config["gradient_accumulation_steps"] = 5
    config["optimizer"]["params"]["lr"] = 0.5
    args = base.arguments(folder, config)
    trainer = transformers.Trainer(model=transformers.GPT2LMHeadModel(base.tiny_config()), args=args,
                                   train_dataset=base.data(8))
    try:
        trainer.train()
    except ValueError as error:
        return str(error)
    return ""


def test_conflicts_with_the_arguments_come_all_at_once_with_both_sides(tmp_path):
    text = ranks.run(1, conflicts, str(tmp_path))[0]
    for ours, theirs in (("train_micro_batch_size_per_gpu=7", "per_device_train_batch_size=2"),
                         ("gradient_accumulation_steps=5", "gradient_accumulation_steps=2"),
                         ("gradient_clipping=0.3", "max_grad_norm=1.0"), ("optimizer.params.lr=0.5", "learning_rate=0.01")):
        assert ours in text and theirs in text, text


def generate_once_gathered():
    """No synchronised loop: everything is whole while the ranks generate what they like."""
    import deepspeed
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(base.tiny_config())
    config = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
              "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}
    engine = deepspeed.initialize(model=model, config=config)[0]
    length = 3 + 5 * dist.get_rank()
    with torch.no_grad(), deepspeed.zero.unwrap_model_for_generation(engine) as unwrapped:
        tokens = unwrapped.module.generate(torch.tensor([[5, 6]]), max_new_tokens=length, do_sample=False,
                                           eos_token_id=None, pad_token_id=0)
    rows = torch.arange(8)[None]
    engine.backward(engine(rows, labels=rows).loss)  # and training goes on
    engine.step()
    return tokens[0].tolist()


def test_ranks_generate_different_lengths_from_a_model_gathered_once():
    first, second = ranks.run(2, generate_once_gathered)
    assert (len(first), len(second)) == (5, 10) and second[:5] == first


def runs_out(model, where, limit):
    """Batches above the limit ask for 2^60 bytes, in forward or when their loss is differentiated. Returns the sizes."""
    tried = []

    def ask(size):
        torch.empty(1 << 58) if size > limit else None

    def before(module, args, kwargs):
        tried.append(len(kwargs["input_ids"]))
        ask(tried[-1] if where == "forward" else 0)

    def after(module, args, kwargs, output):
        size = tried[-1] if where == "backward" else 0
        output.loss.register_hook(lambda grad: ask(size))

    model.register_forward_pre_hook(before, with_kwargs=True)
    model.register_forward_hook(after, with_kwargs=True)
    return tried


def find_a_batch(folder, stage, where, start):
    args = base.arguments(folder, base.config_of(stage))
    args.auto_find_batch_size, args.per_device_train_batch_size = True, start
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(base.tiny_config())
    tried = runs_out(model, where, limit=2)
    trainer = transformers.Trainer(model=model, args=args, train_dataset=base.data(32))
    trainer.train()
    return tried, [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("world, stage, where", [(1, 2, "forward"), (2, 1, "backward"), (2, 2, "forward")])
def test_the_trainer_finds_a_batch_that_fits_and_trains_as_if_it_had_begun_with_it(tmp_path, world, stage, where):
    found = ranks.run(world, find_a_batch, str(tmp_path), stage, where, 4)
    plain = ranks.run(world, find_a_batch, str(tmp_path), stage, where, 2)
    for (tried, losses), (twos, plain_losses) in zip(found, plain):
        assert tried[0] == 4 and set(twos) == {2} and tried[-len(twos):] == twos
        assert losses == pytest.approx(plain_losses, abs=1e-6) and len(losses) == 4


def predict_untrained(folder):
    args = base.arguments(folder, base.config_of(3))
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(base.tiny_config())
    rows = base.data(8)
    with torch.no_grad():
        expected = model.eval()(torch.stack([row["input_ids"] for row in rows])).logits
    trainer = transformers.Trainer(model=model, args=args, eval_dataset=rows)
    loss = trainer.evaluate()["eval_loss"]
    return loss, trainer.predict(rows).predictions, expected


def test_a_model_is_evaluated_at_stage_3_without_having_been_trained(tmp_path):
    for loss, found, expected in ranks.run(2, predict_untrained, str(tmp_path)):
        assert 0 < loss < 10  # that of random guesses is 4.2
        assert torch.allclose(torch.as_tensor(found), expected, atol=1e-5)


def train_again(folder, stage):
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(base.tiny_config())
    trainer = transformers.Trainer(model=model, args=base.arguments(folder, base.config_of(stage)),
                                   train_dataset=base.data(32), eval_dataset=base.data(4))
    losses = []
    for turn in range(3):
        if turn == 2:
            trainer.accelerator.free_memory()  # somebody else does
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
        assert trainer.model_wrapped is trainer.deepspeed is not model
    trainer.save_model(f"{folder}/stage{stage}")
    return losses, trainer.evaluate()["eval_loss"]


def test_a_trainer_that_trains_again_goes_on_from_where_it_was(tmp_path):
    first, second, third = (ranks.run(2, train_again, str(tmp_path), stage) for stage in (1, 2, 3))
    for (losses, evaluated), (expected, expected_evaluated), (at_1, _) in zip(third, second, first, strict=True):
        assert [len(each) for each in losses] == [4] * 3 and losses[2][0] < losses[1][0] < losses[0][0]
        assert losses == expected and evaluated == pytest.approx(expected_evaluated, abs=1e-5)
        assert sum(losses, []) == pytest.approx(sum(at_1, []), abs=1e-4)  # which reduces once per step
    saved = [transformers.GPT2LMHeadModel.from_pretrained(tmp_path / f"stage{stage}").state_dict() for stage in (2, 3)]
    assert saved[0].keys() == saved[1].keys() and all(torch.equal(saved[0][name], saved[1][name]) for name in saved[0])

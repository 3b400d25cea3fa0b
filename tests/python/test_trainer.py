"""The Hugging Face Trainer and PEFT over our package `deepspeed`, unchanged."""

import pytest
import ranks
import torch
import torch.distributed as dist

transformers = pytest.importorskip("transformers", reason="needs the package transformers")
pytest.importorskip("accelerate", reason="needs the package accelerate")

from hugging_face import VOCABULARY, arguments, config_of, data, tiny_config  # noqa: E402


def train(folder, stage):
    """With the Trainer's own optimizer and schedule; without a stage over DistributedDataParallel."""
    deepspeed = None
    if stage is not None:
        deepspeed = {key: value for key, value in config_of(stage).items() if key not in ("optimizer", "scheduler")}
        deepspeed["zero_allow_untested_optimizer"] = True
    args = arguments(folder, deepspeed)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(tiny_config())
    trainer = transformers.Trainer(model=model, args=args, train_dataset=data(32), eval_dataset=data(8))
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    evaluated = trainer.evaluate()["eval_loss"]
    return losses, evaluated, type(trainer.model_wrapped).__name__


def test_every_stage_trains_and_evaluates_as_ddp_does(tmp_path):
    results = {stage: ranks.run(2, train, str(tmp_path), stage) for stage in (None, 1, 2, 3)}
    losses, evaluated, wrapper = results[None][0]
    assert wrapper == "DistributedDataParallel" and losses[-1] < losses[0] and len(losses) == 4
    for stage in (1, 2, 3):
        for rank in range(2):
            assert results[stage][rank][2] == "DeepSpeedEngine"
            assert results[stage][rank][0] == pytest.approx(losses, abs=2e-3)
            assert results[stage][rank][1] == pytest.approx(evaluated, abs=2e-3)


def load_resize_generate(folder):
    args = arguments(folder, config_of(3))
    torch.manual_seed(0)
    plain = transformers.GPT2LMHeadModel(tiny_config())
    if dist.get_rank() == 0:
        plain.save_pretrained(folder)
    dist.barrier()
    expected = {n: p.detach().clone() for n, p in plain.named_parameters()}
    model = transformers.GPT2LMHeadModel.from_pretrained(folder)
    assert all(p.numel() == 0 for p in model.parameters())  # sharded while it was loaded
    import capstan
    with capstan.gathered(model):
        for name, param in model.named_parameters():
            assert torch.equal(param, expected[name]), name
    model.resize_token_embeddings(VOCABULARY + 8)
    trainer = transformers.Trainer(model=model, args=args, train_dataset=data(32))
    trainer.train()
    engine = trainer.model_wrapped
    engine.eval()
    prompt = torch.tensor([[5, 6, 7]])
    # Ranks ask for different lengths: nobody may hang.
    length = 4 + 3 * dist.get_rank()
    tokens = engine.module.generate(prompt, max_new_tokens=length, do_sample=False, synced_gpus=True,
                                    eos_token_id=None, pad_token_id=0)
    assert tokens.shape[1] == 3 + length
    return tokens[:, :7].tolist()


def test_stage_3_loads_resizes_and_generates(tmp_path):
    first, second = ranks.run(2, load_resize_generate, str(tmp_path))
    assert first == second


def train_lora(folder):
    peft = pytest.importorskip("peft")
    args = arguments(folder, config_of(3))
    args.gradient_checkpointing = True
    model = transformers.GPT2LMHeadModel.from_pretrained(folder)
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn"],
                                                       task_type="CAUSAL_LM"))
    trainer = transformers.Trainer(model=model, args=args, train_dataset=data(32))
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_lora_at_stage_3_with_gradient_checkpointing(tmp_path):
    pytest.importorskip("peft", reason="needs the package peft")
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(tiny_config()).save_pretrained(tmp_path)
    losses = ranks.run(2, train_lora, str(tmp_path))[0]
    assert losses[-1] < losses[0]

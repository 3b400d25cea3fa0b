"""Accelerate's save_state, load_state and save_model over our package `deepspeed`, with its placeholders and two models."""

import pytest
import ranks
import torch
import torch.distributed as dist

accelerate = pytest.importorskip("accelerate", reason="needs the package accelerate")
transformers = pytest.importorskip("transformers", reason="needs the package transformers")

import hugging_face  # noqa: E402,F401  loads what the ranks need

VOCABULARY = 64


def tiny_gpt2(seed=0):
    torch.manual_seed(seed)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=32, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0))


def batches(count):
    tokens = torch.randint(0, VOCABULARY, (2 * count * dist.get_world_size(), 16),
                           generator=torch.Generator().manual_seed(1))
    return torch.utils.data.DataLoader([{"input_ids": row, "labels": row} for row in tokens], batch_size=2)


def config_of(stage):
    return {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0,
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0,
                                  "stage3_gather_16bit_weights_on_model_save": True},
            "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
                                                         "warmup_num_steps": "auto"}}}


def prepared(stage):
    from accelerate import Accelerator, DeepSpeedPlugin
    from accelerate.utils import DummyOptim, DummyScheduler
    accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config_of(stage)))
    model = tiny_gpt2()
    optimizer = DummyOptim(model.parameters(), lr=1e-2)
    schedule = DummyScheduler(optimizer, warmup_num_steps=2, total_num_steps=8)
    return accelerator, accelerator.prepare(model, optimizer, batches(4), schedule)


def steps(accelerator, model, optimizer, data, schedule):
    losses = []
    for batch in data:
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def save(folder, stage):
    accelerator, parts = prepared(stage)
    steps(accelerator, *parts)
    accelerator.save_state(f"{folder}/state")
    accelerator.save_model(parts[0], f"{folder}/model")
    with torch.no_grad():
        probe = parts[0](torch.arange(8)[None]).logits.sum().item()
    return probe, steps(accelerator, *parts)


def load(folder, stage):
    accelerator, parts = prepared(stage)
    accelerator.load_state(f"{folder}/state")
    return steps(accelerator, *parts)


@pytest.mark.parametrize("saved_at, loaded_at", [(2, 2), (3, 3), (3, 1)])
def test_a_state_goes_on_where_it_was_saved(tmp_path, saved_at, loaded_at):
    saved = ranks.run(2, save, str(tmp_path), saved_at)
    resumed = ranks.run(2, load, str(tmp_path), loaded_at)
    for rank in range(2):
        assert resumed[rank] == pytest.approx(saved[rank][1], abs=1e-6)
    # What save_model wrote is the whole model, readable without us.
    plain = tiny_gpt2(seed=3)
    from safetensors.torch import load_file
    plain.load_state_dict(load_file(tmp_path / "model" / "model.safetensors"), strict=False)
    with torch.no_grad():
        assert plain(torch.arange(8)[None]).logits.sum().item() == pytest.approx(saved[0][0], abs=1e-3)


def two_models(stage):
    """A teacher that is only evaluated beside a student that is trained."""
    from accelerate import Accelerator, DeepSpeedPlugin
    from accelerate.utils import DummyOptim
    training, evaluation = config_of(stage), config_of(stage)
    training.pop("scheduler"), evaluation.pop("scheduler"), evaluation.pop("optimizer")
    plugins = {"student": DeepSpeedPlugin(hf_ds_config=training), "teacher": DeepSpeedPlugin(hf_ds_config=evaluation)}
    accelerator = Accelerator(deepspeed_plugins=plugins)
    student, teacher = tiny_gpt2(0), tiny_gpt2(1)
    student, optimizer, data = accelerator.prepare(student, DummyOptim(student.parameters(), lr=1e-2), batches(4))
    accelerator.state.select_deepspeed_plugin("teacher")
    teacher = accelerator.prepare(teacher)
    accelerator.state.select_deepspeed_plugin("student")
    losses = []
    for batch in data:
        with torch.no_grad():
            wanted = teacher(batch["input_ids"]).logits.softmax(-1)
        loss = torch.nn.functional.cross_entropy(student(batch["input_ids"]).logits.flatten(0, 1),
                                                 wanted.flatten(0, 1))
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_a_second_model_is_evaluated_beside_the_one_that_trains():
    results = {stage: ranks.run(2, two_models, stage)[0] for stage in (0, 3)}
    assert results[3] == results[0]
    assert results[0][-1] < results[0][0]

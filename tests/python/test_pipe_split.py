"""Hugging Face models cut into stages have the bits of the same models in one piece."""

import pytest
import ranks
import torch
import torch.distributed as dist

transformers = pytest.importorskip("transformers", reason="needs transformers")

import capstan  # noqa: E402
from capstan import pipeline  # noqa: E402

VOCABULARY, STEPS, GAS = 48, 2, 2
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 32}
GPT2 = {"vocab_size": VOCABULARY, "n_positions": 32, "n_embd": 16, "n_layer": 4, "n_head": 2, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
        "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 2}
KINDS = {"gpt2": lambda tied: transformers.GPT2Config(**GPT2, tie_word_embeddings=tied),
         "llama": lambda tied: transformers.LlamaConfig(**SIZES, tie_word_embeddings=tied),
         "mistral": lambda tied: transformers.MistralConfig(**SIZES, tie_word_embeddings=tied, sliding_window=4),
         "qwen2": lambda tied: transformers.Qwen2Config(**SIZES, tie_word_embeddings=tied, use_sliding_window=True,
                                                        sliding_window=3, max_window_layers=2),
         "qwen3": lambda tied: transformers.Qwen3Config(**SIZES, head_dim=4, tie_word_embeddings=tied)}


def model_of(kind, tied=False, seed=0):
    torch.manual_seed(seed)
    return transformers.AutoModelForCausalLM.from_config(KINDS[kind](tied))


def config(stage=0, dtype="fp32", gas=GAS, **more):
    kinds = {"fp32": {}, "bf16": {"bf16": {"enabled": True}}, "fp16": {"fp16": {"enabled": True, "initial_scale_power": 8}}}
    return {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": gas, "gradient_clipping": 0,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}, "zero_optimization": {"stage": stage}, **kinds[dtype], **more}


def batches(data_rank=0, steps=STEPS, gas=GAS):
    """Rows that are filled up on the right, and tokens that do not count."""
    for number in range(steps * gas):
        generator = torch.Generator().manual_seed(100 * data_rank + number)
        tokens = torch.randint(3, VOCABULARY, (2, 9 + number % 2), generator=generator)
        mask = torch.ones_like(tokens)
        mask[1, 6:] = 0
        labels = tokens.masked_fill(mask == 0, -100)
        yield {"input_ids": tokens, "attention_mask": mask, "labels": labels}


def weights_of(engine):
    return {name: param.detach().clone() for name, param in engine.module.named_parameters()}


def whole(kind, settings, tied=False, steps=STEPS):
    engine = capstan.initialize(model_of(kind, tied), settings)
    losses, data = [], batches(dist.get_rank(), steps, settings["gradient_accumulation_steps"])
    for _ in range(steps):
        found = []
        for _ in range(settings["gradient_accumulation_steps"]):
            loss = engine(**next(data)).loss
            engine.backward(loss)
            engine.step()
            found.append(loss.detach())
        losses.append(torch.stack(found).float())
    return losses, weights_of(engine)


def piped(kind, settings, stages, tied=False, steps=STEPS, **how):
    engine = capstan.initialize(pipeline.split(model_of(kind, tied), stages, **how), settings)
    gas = settings["gradient_accumulation_steps"]
    data = batches(dist.get_rank() % (dist.get_world_size() // stages), steps, gas)
    losses = [engine.train_batch(data) for _ in range(steps)]
    return losses, weights_of(engine), list(engine.module.state_dict()), engine.whole_weights()


def check_same(kind, stages, data, settings, tied=False):
    expected = ranks.run(data, whole, kind, settings, tied)
    found = ranks.run(stages * data, piped, kind, settings, stages, tied)
    for step in range(STEPS):
        means = [(losses[step].sum() / len(losses[step])).item() for losses, _ in expected]
        assert all(losses[step].item() == torch.tensor(sum(means) / data).item() for losses, *_ in found)
    weights, names = expected[0][1], set()
    for _, own, *_ in found:
        names |= set(own)
        assert own and all(torch.equal(own[name], weights[name]) for name in own)
    assert names == set(weights)
    return found


@pytest.mark.parametrize("kind, stages, data, stage, dtype", [
    ("llama", 2, 2, 2, "fp32"), ("gpt2", 3, 1, 1, "bf16"), ("qwen2", 2, 1, 1, "fp32"), ("qwen3", 3, 1, 0, "fp32"),
    ("mistral", 2, 1, 0, "bf16"), ("llama", 2, 1, 1, "fp16")])
def test_stages_have_the_bits_of_one_piece(kind, stages, data, stage, dtype):
    check_same(kind, stages, data, config(stage, dtype))


def test_tied_embeddings_are_one_tensor_of_both_ends():
    found = check_same("llama", 2, 1, config(1, gas=1), tied=True)  # as many operands: each use once
    first, last = (own["model.embed_tokens.weight"] for _, own, *_ in found)
    assert torch.equal(first, last) and found[0][2].count("lm_head.weight") == 1
    settings = config(0, optimizer={"type": "SGD", "params": {"lr": 0.1}}, zero_allow_untested_optimizer=True)
    expected = ranks.run(1, whole, "gpt2", settings, True)[0]
    two, three = (ranks.run(stages, piped, "gpt2", settings, stages, True) for stages in (2, 3))
    for (losses, own, *_), (others, own_of_three, *_) in zip(two, three[::2]):
        assert losses == others and torch.equal(own["transformer.wte.weight"], own_of_three["transformer.wte.weight"])
        torch.testing.assert_close(own["transformer.wte.weight"], expected[1]["transformer.wte.weight"], rtol=1e-5, atol=1e-6)


def scheduled(schedule, recompute):
    settings = config(1, gas=4, capstan={"pipeline_schedule": schedule}, pipeline={"activation_checkpoint_interval": recompute})
    engine = capstan.initialize(pipeline.split(model_of("gpt2"), 2, cuts=[3]), settings)
    block, seen = engine.module.transformer.h.get_submodule("3" if dist.get_rank() else "0"), []
    block.attn.register_forward_hook(lambda *_: seen.append(1))
    data = batches(steps=1, gas=4)
    return engine.train_batch(data).item(), weights_of(engine), len(seen), list(engine.module.transformer.h._modules)


def test_schedules_and_recomputed_blocks_change_no_bit():
    plain = ranks.run(2, scheduled, "1f1b", 0)
    assert [each[2:] for each in plain] == [(4, ["0", "1", "2"]), (4, ["3"])]
    for schedule, interval in (("zb-h1", 0), ("gpipe", 1)):
        for (loss, own, runs, _), (expected, weights, *_) in zip(ranks.run(2, scheduled, schedule, interval), plain):
            assert loss == expected and runs == (4 + 4 * interval)
            assert all(torch.equal(own[name], weights[name]) for name in weights)


# Checkpoints and weights

def saved(stages, folder, load, tied):
    """Two steps, saved; or two more after a load, at any number of stages."""
    model = model_of("llama", tied, seed=1 if load else 0)
    settings = config(1, gas=1)
    engine = capstan.initialize(model if stages == 1 else pipeline.split(model, stages), settings)
    data = batches(steps=4, gas=1)
    if load:
        engine.load_checkpoint(folder)
        for _ in range(2):
            next(data)
    losses = []
    for _ in range(2):
        if stages > 1:
            losses.append(engine.train_batch(data).item())
            continue
        loss = engine(**next(data)).loss
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    if not load:
        engine.save_checkpoint(folder)
        engine.save_weights(folder + "/model.safetensors")
    return losses, weights_of(engine)


@pytest.mark.parametrize("tied", [False, True])
def test_a_checkpoint_of_stages_is_that_of_the_whole_model(tmp_path, tied):
    staged, one = str(tmp_path / "staged"), str(tmp_path / "one")
    (first, _), _ = ranks.run(2, saved, 2, staged, False, tied)
    assert ranks.run(1, saved, 1, one, False, tied)[0][0] == first
    after = [ranks.run(stages, saved, stages, folder, True, tied)
             for stages, folder in ((1, one), (1, staged), (2, one), (3, staged))]
    (losses, weights), = after[0]
    for result in after:
        for found, own in result:
            assert found == losses and all(torch.equal(own[name], weights[name]) for name in own)


def exported(folder):
    model = model_of("llama", tied=True)
    engine = capstan.initialize(pipeline.split(model, 2), config())
    engine.train_batch(batches())
    engine.save_weights(folder + "/model.safetensors")
    model.config.save_pretrained(folder)
    return engine.eval_batch(batches(steps=1), micro_batches=1).item()


def test_exported_weights_are_a_model_of_hugging_faces(tmp_path):
    loss, again = ranks.run(2, exported, str(tmp_path))
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    batch = next(batches())
    with torch.no_grad():
        assert model(**batch).loss.item() == loss == again


def from_meta(folder, tied):
    with torch.device("meta"):
        empty = transformers.AutoModelForCausalLM.from_config(KINDS["llama"](tied))
    stage = pipeline.split(empty, 2, weights=folder)
    engine = capstan.initialize(stage, config())
    elsewhere = sum(param.numel() for param in empty.parameters() if param.is_meta)
    return engine.train_batch(batches()).item(), elsewhere


@pytest.mark.parametrize("tied", [False, True])
def test_a_stage_is_built_without_memory_for_the_others(tmp_path, tied):
    model_of("llama", tied).save_pretrained(tmp_path)
    expected = ranks.run(2, piped, "llama", config(), 2, tied)[0][0][0].item()
    results = ranks.run(2, from_meta, str(tmp_path), tied)
    assert [loss for loss, _ in results] == [expected, expected]
    assert all(elements > 2000 for _, elements in results)


# From the configuration, and what is refused

def configured(stages, door):
    settings = config(1, pipeline={"stages": stages})
    model = model_of("qwen3")
    if door == "capstan":
        engine = capstan.initialize(model, settings)
    else:
        import deepspeed
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
    assert engine.num_stages == stages and engine.micro_batches == GAS
    data = batches(dist.get_rank() % (dist.get_world_size() // stages))
    return engine.train_batch(data).item(), engine.eval_batch(batches(), ).item(), len(weights_of(engine))


def test_the_configuration_cuts_models_that_split_knows_at_every_door():
    pytest.importorskip("deepspeed", reason="needs the package deepspeed")
    ours, theirs = ranks.run(4, configured, 2, "capstan"), ranks.run(4, configured, 2, "deepspeed")
    assert ours == theirs and len({each[:2] for each in ours}) == 1
    assert ours[0][2] + ours[-1][2] == len(list(model_of("qwen3").parameters()))


def refusals():
    with pytest.raises(capstan.ConfigError, match="a Linear cannot be cut into stages"):
        capstan.initialize(torch.nn.Linear(2, 2), config(pipeline={"stages": 2}))
    with pytest.raises(capstan.ConfigError, match=r"no place for 2 ranks\n.*where: pipeline.stages"):
        pipeline.split(model_of("gpt2"), 3)
    with pytest.raises(capstan.ConfigError, match=r"the cuts \[2, 1\] do not make 2 stages of 4 blocks"):
        pipeline.split(model_of("gpt2"), 2, cuts=[2, 1])
    model = model_of("gpt2")
    with pytest.raises(capstan.ConfigError, match="an optimizer over all of a model"):
        capstan.initialize(model, config(pipeline={"stages": 2}), optimizer=torch.optim.SGD(model.parameters(), lr=1))
    with torch.device("meta"):
        empty = transformers.AutoModelForCausalLM.from_config(KINDS["gpt2"](False))
    with pytest.raises(capstan.ConfigError, match="has no values"):
        pipeline.split(empty, 2)
    stage = pipeline.split(model, 2)
    with pytest.raises(capstan.ConfigError, match="the configuration has 1 stage, but the model has 2"):
        capstan.initialize(stage, config(pipeline={"stages": 1}))
    with pytest.raises(capstan.ConfigError, match="recomputed one at a time, not 2"):
        capstan.initialize(stage, config(pipeline={"activation_checkpoint_interval": 2}))
    engine = capstan.initialize(pipeline.split(model, 2), config())
    with pytest.raises(capstan.ConfigError, match="one stage cannot run alone"):
        engine(torch.zeros(1, 2, dtype=torch.long))
    with pytest.raises(capstan.CommError, match="'token_type_ids' cannot go through stages"):
        engine.train_batch({**batch, "token_type_ids": batch["input_ids"]} for batch in batches())


def test_what_cannot_be_is_refused_by_name():
    ranks.run(2, refusals)

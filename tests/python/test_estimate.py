"""What is estimated from fake tensors is what real runs hold: every allocation of libtorch is counted by its profiler."""

import pytest
import torch
from ranks import alone

capstan = pytest.importorskip("capstan", reason="needs the package capstan")
transformers = pytest.importorskip("transformers", reason="needs transformers")

from capstan import estimates as module  # noqa: E402

SMALL = {"vocab_size": 512}
QUIET = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_embd=96, n_layer=3, n_head=4, n_positions=128, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, **SMALL))


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=96, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4, **SMALL))


def bert():
    return transformers.BertForMaskedLM(transformers.BertConfig(
        hidden_size=96, intermediate_size=384, num_hidden_layers=3, num_attention_heads=4, **SMALL, **QUIET))


def t5():
    return transformers.T5ForConditionalGeneration(transformers.T5Config(
        d_model=96, d_ff=256, num_layers=2, d_kv=24, num_heads=4, dropout_rate=0, decoder_start_token_id=0, **SMALL))


def vit():
    return transformers.ViTForImageClassification(transformers.ViTConfig(
        hidden_size=96, intermediate_size=384, num_hidden_layers=3, num_attention_heads=4, image_size=64, patch_size=8,
        **QUIET))


def batch_for(make):
    if make is vit:
        return {"pixel_values": torch.randn(4, 3, 64, 64), "labels": torch.tensor([0, 1, 0, 1])}
    ids = torch.randint(1, 500, (2, 64))
    return {"input_ids": ids, "labels": ids}


def held_by(run):
    """The most that libtorch held on the CPU at a time while `run` ran, beyond what was there before."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    held = most = 0
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def peak_of(events):
    held = most = 0
    for kind, _, size in events:
        held += {"take": size, "give": -size}.get(kind, 0)
        most = max(most, held)
    return most, held


@pytest.mark.parametrize("recompute", [False, True], ids=["keeping", "recomputing"])
@pytest.mark.parametrize("make", [gpt2, llama, bert, t5, vit])
@alone
def test_a_traced_peak_is_that_of_a_real_run(make, recompute, monkeypatch):
    seen = []
    monkeypatch.setattr(module._C, "Paper", lambda params, units, events, buffers: seen.append(events))
    model, batch = make(), batch_for(make)
    if recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    before = {name: p.data_ptr() for name, p in model.named_parameters()}
    resolved = module._C.resolve_config(module._C.read_config({"train_micro_batch_size_per_gpu": 1}), reads_only=True)
    module._trace(model, batch, resolved, torch.float32)
    said, left = peak_of(seen[0])
    assert left == 0
    assert {name: p.data_ptr() for name, p in model.named_parameters()} == before  # the model is as it was
    for param in model.parameters():
        param.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))

    def run():
        model(**batch).loss.backward()

    model.train()
    real = held_by(run) + sum(tensor.nbytes for tensor in batch.values())
    # What a convolution works in depends on the CPU.
    assert abs(said - real) <= (0.05 if make is vit else 0.02) * real, (said, real)


@alone
def test_seven_billion_parameters_take_seconds_and_no_weights():
    config = transformers.LlamaConfig(hidden_size=4096, intermediate_size=11008, num_hidden_layers=32,
                                      num_attention_heads=32, dtype="bfloat16")
    ids = torch.empty((1, 2048), dtype=torch.long, device="meta")
    found = capstan.estimate(lambda: transformers.LlamaForCausalLM(config).to(torch.bfloat16),
                             {"input_ids": ids, "labels": ids}, gpus=8, gpu_memory="80GiB", host_memory="1TiB")
    text = str(found)
    assert "6.74 B parameters in bfloat16 on 8 GPUs" in text
    by_stage = {row.stage: row.device_bytes for row in found.rows if not row.host_bytes and not row.recompute}
    # 16 bytes per parameter at least; and shards of an eighth of it.
    assert by_stage[0] > 16 * 6.7e9 and by_stage[3] < by_stage[2] < by_stage[0]
    recomputed = {row.stage: row.device_bytes for row in found.rows if not row.host_bytes and row.recompute}
    assert recomputed[3] < by_stage[3]
    assert not found.rows[0].fits and "GPU memory" in found.rows[0].lacks


@alone
def test_a_configuration_gives_one_row_with_its_phases():
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    config = {"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
              "zero_optimization": {"stage": 2}}
    found = capstan.estimate(model, torch.randn(4, 64), config, gpus=2, device="cpu")
    [row] = found.rows
    assert row.stage == 2 and "between steps" in str(found)
    phases = row.as_dict()["phases"]
    assert phases["backward"]["activations"] > 0 and phases["between steps"]["activations"] == 0


@pytest.mark.parametrize("wrong, told", [({"gpus": 0}, "gpus is 0"), ({"gpu_memory": "24 parsecs"}, "24GiB"),
                                         ({"machine": "h2000"}, "did you mean h200")])
@alone
def test_bad_input_is_told(wrong, told):
    with pytest.raises(capstan.ConfigError, match=told):
        capstan.estimate(torch.nn.Linear(4, 4), torch.randn(2, 4), **wrong)


@alone
def test_a_model_without_gradients_is_told():
    model = torch.nn.Linear(4, 4).requires_grad_(False)
    with pytest.raises(capstan.ConfigError, match="no gradient"):
        capstan.estimate(model, torch.randn(2, 4))

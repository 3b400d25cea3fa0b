"""Random-LTD: layers that see some of the tokens, for models of one's own and of Hugging Face."""

import pytest
import ranks
import torch
from torch import nn

from capstan import _C
from capstan.errors import ConfigError

deepspeed = pytest.importorskip("deepspeed", reason="needs the package deepspeed")

from deepspeed.runtime.data_pipeline.data_routing.basic_layer import (  # noqa: E402
    RandomLayerTokenDrop, keep_in_mask)
from deepspeed.runtime.data_pipeline.data_routing.helper import (  # noqa: E402
    convert_to_random_ltd, number_layers, remove_random_ltd_state_dict, save_without_random_ltd)
from deepspeed.runtime.data_pipeline.data_routing.scheduler import RandomLTDScheduler  # noqa: E402

PLAN = {"enabled": True, "total_layer_num": 3, "random_ltd_layer_num": 1, "random_ltd_layer_id": [1],
        "random_ltd_schedule": {"min_value": 4, "max_value": 10, "schedule_type": "fixed_linear",
                                "schedule_config": {"require_steps": 6, "seq_per_step": 2}}}


class Kept:
    """A schedule that always keeps so many tokens."""

    def __init__(self, kept):
        self.kept = kept

    def get_current_seq(self):
        return self.kept


class Layer(nn.Module):
    """Mixes the tokens that it is given, where the mask lets it."""

    def __init__(self, width):
        super().__init__()
        self.mix = nn.Linear(width, width)

    def forward(self, x, attention_mask=None, position_ids=None):
        weights = torch.ones(x.size(1), x.size(1), dtype=x.dtype) if attention_mask is None else attention_mask[:, 0].to(x.dtype)
        if position_ids is not None:
            x = x * (1 + position_ids.unsqueeze(-1)).to(x.dtype)
        return self.mix(weights @ x), "beside"


def wrap(layer, kept, order="batch_seq_dim"):
    wrapped = RandomLayerTokenDrop(layer)
    wrapped.init_config({"hidden_state_order": order}, Kept(kept), 0, lambda layer: 17)
    return wrapped


def by_hand(layer, x, mask, positions, kept):
    """Row by row, with ordinary indexing."""
    rows = _C.choose_positions(x.size(0), x.size(1), kept, 17)
    out = x.clone()
    for row, chosen in enumerate(rows):
        part = {} if mask is None else {"attention_mask": mask[row:row + 1][:, :, chosen][..., chosen]}
        out[row, chosen] = layer(x[row:row + 1, chosen], position_ids=positions[:, chosen], **part)[0][0]
    return out


@pytest.mark.parametrize("tokens, kept, width", [(5, 3, 3), (7, 1, 8), (3001, 17, 5), (6, 6, 4)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_results_and_gradients_are_those_of_indexing_by_hand(tokens, kept, width, dtype):
    torch.manual_seed(0)
    layer = Layer(width).to(dtype)
    mask = None if tokens > 100 else torch.ones(2, 1, tokens, tokens).tril()
    positions = torch.arange(tokens)[None]
    x = torch.randn(2, tokens, width, dtype=dtype)
    found, expected = x.clone().requires_grad_(), x.clone().requires_grad_()
    out, beside = wrap(layer, kept)(found, mask, position_ids=positions)
    want = by_hand(layer, expected, mask, positions, kept) if kept < tokens else layer(expected, mask, positions)[0]
    close = {"rtol": 1e-9, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 0.05, "atol": 0.1}
    assert beside == "beside"
    torch.testing.assert_close(out, want, **close)
    seeds = torch.randn_like(out)
    grads = [torch.autograd.grad(each, (start, layer.mix.weight), seeds) for each, start in ((out, found), (want, expected))]
    for ours, theirs in zip(*grads):
        torch.testing.assert_close(ours, theirs, **close)


def test_dropped_tokens_pass_with_their_gradient_and_kept_ones_have_the_layer_s_alone():
    layer = nn.Linear(4, 4)
    layer.weight.data.zero_()
    wrapped, x = wrap(layer, 2), torch.randn(3, 5, 4, requires_grad=True)
    wrapped(x).sum().backward()
    rows = _C.choose_positions(3, 5, 2, 17)
    expected = torch.ones(3, 5, 4)
    for row, chosen in enumerate(rows):
        expected[row, chosen] = 0  # the layer forgets its input
    assert torch.equal(x.grad, expected)


def test_the_sequence_may_come_first_and_outside_of_training_all_tokens_are_seen():
    layer, x = nn.Linear(4, 4), torch.randn(5, 3, 4)
    wrapped = wrap(layer, 2, "seq_batch_dim")
    assert torch.equal(wrapped(x), wrap(layer, 2)(x.transpose(0, 1)).transpose(0, 1))
    assert torch.equal(wrapped.eval()(x), layer(x))


def test_masks_of_every_shape():
    chosen, tokens = torch.tensor([[0, 2], [1, 3]]), 4
    padding = torch.tensor([[1, 1, 0, 1], [1, 0, 1, 1]])
    assert keep_in_mask(padding, chosen, tokens).tolist() == [[1, 0], [0, 1]]
    causal = torch.ones(4, 4, dtype=torch.bool).tril()[None, None]
    kept = keep_in_mask(causal, chosen, tokens)
    assert kept.shape == (2, 1, 2, 2) and torch.equal(kept, torch.ones(2, 2, dtype=torch.bool).tril().expand(2, 1, 2, 2))
    assert keep_in_mask(padding[:, None, None], chosen, tokens).tolist() == [[[[1, 0]]], [[[0, 1]]]]
    assert keep_in_mask(None, chosen, tokens) is None
    with pytest.raises(ConfigError, match="last dimension is the 4 tokens"):
        keep_in_mask(torch.ones(2, 5), chosen, tokens)


def test_layers_are_told_apart_by_their_whole_number():
    model = nn.Module()
    model.blocks = nn.ModuleList([nn.Linear(2, 2) for _ in range(12)])
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    convert_to_random_ltd(model, nn.Linear)
    assert [number for number, _ in number_layers(model)] == list(range(12))
    assert number_layers(model)[10][1] is model.blocks[10]
    found = save_without_random_ltd(model)
    assert list(found) == list(weights) and all(torch.equal(found[name], weights[name]) for name in weights)
    assert "blocks.1.random_ltd_layer.weight" in model.state_dict()
    assert remove_random_ltd_state_dict({"a.3.random_ltd_layer.b": 1}) == {"a.3.b": 1}
    with pytest.raises(ConfigError, match="no Conv2d"):
        convert_to_random_ltd(model, nn.Conv2d)


def test_the_schedule_and_the_tokens_it_counts():
    scheduler = RandomLTDScheduler({**PLAN, "global_batch_size": 8})
    lengths = []
    for step in range(8):
        scheduler.update_seq(step)
        scheduler.update_seq(step)  # another micro-batch of it
        lengths.append(scheduler.get_current_seq())
    assert lengths == [4, 4, 6, 6, 8, 8, 10, 10]
    tokens = sum(8 * (kept + 2 * 10) for kept in lengths)
    assert scheduler.state["consumed_layer_tokens"] == tokens == scheduler.get_total_layer_tokens(8)
    other = RandomLTDScheduler({**PLAN, "global_batch_size": 8})
    other.load_state_dict(scheduler.state_dict())
    assert other.get_state() == scheduler.get_state()
    rounded = {"min_value": 5, "max_value": 16, "schedule_config": {"require_steps": 10, "seq_per_step": 4}}
    rising = RandomLTDScheduler({**PLAN, "random_ltd_schedule": rounded})
    assert [rising.get_value(step) for step in (0, 1, 5, 9, 10)] == [8, 8, 8, 12, 16]  # multiples, and never below min_value
    with pytest.raises(ConfigError, match="max_value 2 is below min_value 4"):
        RandomLTDScheduler({**PLAN, "random_ltd_schedule": {**PLAN["random_ltd_schedule"], "max_value": 2}})


def config(stage, **plan):
    return {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
            "data_efficiency": {"enabled": True, "seed": 5, "data_routing": {"enabled": True, "random_ltd": {**PLAN, **plan}}}}


def family(kind):
    """A model of three layers, its layers' class, and a batch with padding where it can have that."""
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    torch.manual_seed(0)
    sizes = dict(hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32)
    if kind == "vit":
        from transformers.models.vit.modeling_vit import ViTLayer
        model = transformers.ViTForImageClassification(transformers.ViTConfig(
            **sizes, image_size=16, patch_size=4, num_channels=1, num_labels=3, hidden_dropout_prob=0.0))
        return model, ViTLayer, {"pixel_values": torch.randn(2, 1, 16, 16), "labels": torch.tensor([0, 2])}
    words = torch.randint(5, 30, (2, 12))
    batch = {"input_ids": words, "labels": words, "attention_mask": torch.ones_like(words)}
    batch["attention_mask"][1, 9:] = 0
    if kind == "bert":
        from transformers.models.bert.modeling_bert import BertLayer
        return transformers.BertForMaskedLM(transformers.BertConfig(
            **sizes, vocab_size=30, max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)), BertLayer, batch
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=30, n_positions=16, n_embd=16, n_layer=3, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)), GPT2Block, batch


def seen_lengths(engine, kind):
    """How many tokens each layer was given last."""
    lengths = {}
    for number, layer in number_layers(engine.module):
        layer.random_ltd_layer.register_forward_pre_hook(
            lambda module, args, number=number: lengths.__setitem__(number, args[0].size(1)))
    return lengths


def train(kind, stage, folder, begin, count, recompute=False):
    model, layer_class, batch = family(kind)
    if recompute:
        model.gradient_checkpointing_enable()
    engine = deepspeed.initialize(model=model, config=config(stage), model_parameters=model.parameters())[0]
    engine = convert_to_random_ltd(engine, layer_class)
    lengths, seen, losses = seen_lengths(engine, kind), [], []
    if begin:
        engine.load_checkpoint(folder)
    for _ in range(2 * count):
        loss = engine(**batch).loss
        seen.append(dict(lengths))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    if not begin:
        engine.save_checkpoint(folder)
    names = set(save_without_random_ltd(engine))
    assert names == set(family(kind)[0].state_dict())
    tokens = engine.random_ltd_scheduler.get_state()["consumed_layer_tokens"]
    engine.destroy()
    return losses, seen, tokens


@pytest.mark.parametrize("kind", ["bert", "gpt2", "vit"])
def test_models_of_hugging_face_train_on_and_go_on_from_a_checkpoint(kind, tmp_path):
    def body():
        whole = train(kind, 0, str(tmp_path / "whole"), 0, 4)
        first = train(kind, 3, str(tmp_path / "cut"), 0, 2)
        second = train(kind, 3, str(tmp_path / "cut"), 2, 2, recompute=True)
        return whole, first, second

    (losses, seen, tokens), first, second = ranks.run(1, body)[0]
    every = 17 if kind == "vit" else 12
    assert [each[1] for each in seen[::2]] == [4, 4, 6, 6] and {each[0] for each in seen} == {each[2] for each in seen} == {every}
    assert first[0] + second[0] == pytest.approx(losses, rel=1e-5) and losses[-1] < losses[0]
    assert first[1] + second[1] == seen and second[2] == tokens


def refusals():
    model, layer_class, batch = family("bert")
    engine = deepspeed.initialize(model=model, config=config(0), model_parameters=model.parameters())[0]
    with pytest.raises(ConfigError, match="no layer drops tokens yet"):
        engine(**batch)
    engine.destroy()
    for plan in ({"random_ltd_layer_id": [7]}, {"random_ltd_layer_num": 2}, {"random_ltd_layer_id": [1, 1], "random_ltd_layer_num": 2}):
        model = family("bert")[0]
        engine = deepspeed.initialize(model=model, config=config(0, **plan), model_parameters=model.parameters())[0]
        with pytest.raises(ConfigError, match=r"the model's layers are \[0, 1, 2\]"):
            convert_to_random_ltd(engine, layer_class)
        engine.destroy()
    with pytest.raises(ConfigError, match="total_layer_num must be given"):
        deepspeed.initialize(model=model, config=config(0, total_layer_num=None), model_parameters=model.parameters())
    with pytest.raises(ConfigError, match="layer_token_lr_schedule"):
        deepspeed.initialize(model=model, config=config(0, layer_token_lr_schedule={"enabled": True}))


def test_what_does_not_fit_the_model_is_refused():
    ranks.run(1, refusals)

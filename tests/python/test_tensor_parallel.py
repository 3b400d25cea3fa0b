"""Tensor parallelism: ranks that split the layers of a model train as one rank with all of them does."""

import copy

import pytest
import ranks
import torch
import torch.distributed as dist

transformers = pytest.importorskip("transformers", reason="needs transformers")

import capstan  # noqa: E402
import deepspeed  # noqa: E402
from capstan import tensor_parallel  # noqa: E402
from capstan.tensor_layers import slice_of, stored_name  # noqa: E402
from deepspeed.utils import groups  # noqa: E402
from tensor_models import BUILD, build, config, learn, sample  # noqa: E402

LOADED = [build(kind) for kind in BUILD]  # once here and not in every rank, which is forked from this process

# Of fp32 (2^-24) over sums of at most 64 products, about a hundred operations one after the other, and three steps.
ROUNDING = 2e-5


def whole_gradients(model):
    """name -> gradient, of all ranks' parts where they are parts."""
    found = {}
    for name, param in model.named_parameters():
        piece = slice_of(param)
        if piece is None:
            found[name] = param.grad
            continue
        whole = found.setdefault(stored_name(name, param), torch.zeros(piece.shape, dtype=param.dtype))
        for begin, part in tensor_parallel.gather(param, param.grad):
            whole.narrow(piece.dim, begin, piece.length).copy_(part)
    return found


def against_the_whole(kind):
    torch.manual_seed(dist.get_rank())  # as ranks that begin differently: the first one's weights count
    whole = build(kind).double()
    model = copy.deepcopy(whole)
    with torch.no_grad():
        for param in model.parameters() if dist.get_rank() > 0 else ():
            param.zero_()
    size = dist.get_world_size()
    assert tensor_parallel.split(model, size) is model
    outputs = [each(**sample(1)) for each in (whole, model)]
    torch.testing.assert_close(outputs[1].logits, outputs[0].logits, rtol=1e-11, atol=1e-11)
    for each in outputs:
        each.loss.backward()
    torch.testing.assert_close(whole_gradients(model), {name: p.grad for name, p in whole.named_parameters()},
                               rtol=1e-10, atol=1e-12)
    parts = [p for p in model.parameters() if slice_of(p) is not None]
    large = sum(p.numel() for p in model.parameters()) / sum(p.numel() for p in whole.parameters())
    return len(parts), large


@pytest.mark.parametrize("kind", BUILD)
def test_outputs_and_gradients_of_all_parts_are_those_of_the_whole_model(kind):
    (parts, large), _ = ranks.run(2, against_the_whole, kind)
    assert parts >= 10 and large < 0.72


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_four_ranks_split_four_heads(kind):
    assert ranks.run(4, against_the_whole, kind)[0][1] < 0.5


def trained(kind, size, stage, more, door="deepspeed", given=False):
    model = build(kind)
    if door == "capstan":
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-2, weight_decay=0) if given else None
        settings = config(size, stage, **more)
        if given:
            del settings["optimizer"]
        engine = capstan.initialize(model, settings, optimizer=optimizer)
        found = learn(engine, size, lambda engine: engine._report.grad_norm)
    else:
        engine = deepspeed.initialize(model=model, config=config(size, stage, **more))[0]
        assert engine.dp_world_size == dist.get_world_size() // size and engine.mp_world_size == size
        assert engine.train_batch_size() == 2 * engine.dp_world_size
        found = learn(engine, size, lambda engine: engine.get_global_grad_norm())
    return *found, engine.whole_weights()


def compare(found, wanted, rounding=ROUNDING):
    torch.testing.assert_close(found[0][:2], wanted[0][:2], rtol=rounding, atol=rounding)
    torch.testing.assert_close(dict(found[0][2]), dict(wanted[0][2]), rtol=rounding, atol=rounding)


def same_bits(found, again):
    return found[0][:2] == again[0][:2] and all(torch.equal(found[0][2][name], again[0][2][name]) for name in found[0][2])


@pytest.mark.parametrize("stage, kind", [(0, "llama"), (1, "qwen2"), (2, "gpt2"), (3, "qwen3"), (3, "gpt2")])
def test_two_models_of_two_ranks_train_as_two_ranks_do(stage, kind):
    wanted = ranks.run(2, trained, kind, 1, stage, {})
    found = ranks.run(4, trained, kind, 2, stage, {})
    for rank in range(4):  # the loss of its sample, and one norm for all
        torch.testing.assert_close(found[rank][:2], wanted[rank // 2][:2], rtol=ROUNDING, atol=ROUNDING)
    compare(found, wanted)
    assert wanted[0][0][-1] != wanted[0][0][0] and all(norm > 0.5 for norm in wanted[0][1])  # learnt, and clipped


@pytest.mark.parametrize("stage", [1, 3])
def test_the_same_bits_in_every_run(stage):
    assert same_bits(ranks.run(4, trained, "llama", 2, stage, {}), ranks.run(4, trained, "llama", 2, stage, {}))


def test_the_package_capstan_and_an_optimizer_of_the_program():
    for given in (False, True):
        wanted = ranks.run(1, trained, "gpt2", 1, 2, {}, "capstan", given)
        compare(ranks.run(2, trained, "gpt2", 2, 2, {}, "capstan", given), wanted)


def test_half_precision_and_offload():
    more = {"bf16": {"enabled": True}}
    compare(ranks.run(2, trained, "qwen2", 2, 1, more), ranks.run(1, trained, "qwen2", 1, 1, more), 3e-2)
    offload = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    compare(ranks.run(2, trained, "qwen2", 2, 2, offload), ranks.run(1, trained, "qwen2", 1, 2, {}))


def recomputed(size, stage):
    model = build("llama")
    model.gradient_checkpointing_enable()
    engine = deepspeed.initialize(model=model, config=config(size, stage))[0]
    return *learn(engine, size, lambda engine: engine.get_global_grad_norm()), engine.whole_weights()


@pytest.mark.parametrize("stage", [1, 3])
def test_activations_computed_again_change_no_bit(stage):
    assert same_bits(ranks.run(2, recomputed, 2, stage), ranks.run(2, trained, "llama", 2, stage, {}))


def saved(folder, size, stage):
    engine = deepspeed.initialize(model=build("gpt2"), config=config(size, stage))[0]
    learn(engine, size, lambda engine: 0)
    engine.save_checkpoint(folder)
    return *learn(engine, size, lambda engine: engine.get_global_grad_norm(), range(3, 6)), engine.whole_weights()


def resumed(folder, size, stage):
    engine = deepspeed.initialize(model=build("gpt2"), config=config(size, stage))[0]
    engine.load_checkpoint(folder)
    assert engine.global_steps == 3
    return *learn(engine, size, lambda engine: engine.get_global_grad_norm(), range(3, 6)), engine.whole_weights()


@pytest.mark.parametrize("before, after", [((2, 2, 3), (1, 1, 1)), ((1, 1, 2), (2, 2, 3)), ((4, 2, 1), (4, 4, 2))])
def test_a_checkpoint_is_of_the_whole_model(tmp_path, before, after):
    """(ranks, tensor ranks, stage). The third pair has two data-parallel ranks before and one after: only the weights agree."""
    wanted = ranks.run(before[0], saved, str(tmp_path), *before[1:])
    found = ranks.run(after[0], resumed, str(tmp_path), *after[1:])
    if before[0] // before[1] == after[0] // after[1]:
        compare(found, wanted)
    stored = capstan.StoredWeights(tmp_path)
    assert set(stored) == set(dict(build("gpt2").named_parameters(remove_duplicate=False)))
    assert stored["transformer.h.0.attn.c_attn.weight"].shape == (32, 96)


def exported(folder, kind, stage):
    engine = deepspeed.initialize(model=build(kind), config=config(2, stage))[0]
    learn(engine, 2, lambda engine: 0)
    engine.save_pretrained(folder + "/hugging_face")
    engine.save_16bit_model(folder)
    with torch.no_grad():
        return engine(**sample(7)).logits


@pytest.mark.parametrize("kind, stage", [("llama", 1), ("qwen2", 3), ("gpt2", 2)])
def test_from_pretrained_takes_what_was_saved(tmp_path, kind, stage):
    wanted = ranks.run(2, exported, str(tmp_path), kind, stage)[0]
    model = type(build(kind)).from_pretrained(tmp_path / "hugging_face")
    with torch.no_grad():
        torch.testing.assert_close(model(**sample(7)).logits, wanted, rtol=ROUNDING, atol=ROUNDING)
    weights = torch.load(tmp_path / "pytorch_model.bin")
    torch.testing.assert_close(weights, dict(model.state_dict()), rtol=0, atol=0)


def of_groups():
    engine = deepspeed.initialize(model=build("llama"), config=config(2, 1))[0]
    found = {name: dist.get_process_group_ranks(group) for name, group in (
        ("engine's data", engine.data_parallel_group), ("data", groups._get_data_parallel_group()),
        ("tensor", groups.get_tensor_model_parallel_group()))}
    return found, groups.get_tensor_model_parallel_rank(), engine.autotp_size(), engine.checkpoint_mp_rank


def test_groups_of_a_mesh_of_data_and_tensor_ranks():
    for rank, (found, place, size, mp_rank) in enumerate(ranks.run(4, of_groups)):
        assert found == {"engine's data": [rank % 2, rank % 2 + 2], "data": [rank % 2, rank % 2 + 2],
                         "tensor": [rank - rank % 2, rank - rank % 2 + 1]}
        assert place == mp_rank == rank % 2 and size == 2


class Own(torch.nn.Module):
    """Names that nothing knows; query, key and value side by side in one weight; a norm of each head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.mix, self.back = torch.nn.Linear(8, 48), torch.nn.Linear(16, 8)
        self.norm, self.wide, self.narrow = torch.nn.LayerNorm(4), torch.nn.Linear(8, 12), torch.nn.Linear(12, 8)
        self.out = torch.nn.Linear(8, 6)

    def forward(self, x):
        query, key, value = (part.unflatten(-1, (-1, 4)).transpose(1, 2) for part in self.mix(x).chunk(3, -1))
        mixed = torch.nn.functional.scaled_dot_product_attention(self.norm(query), key, value)
        x = x + self.back(mixed.transpose(1, 2).flatten(2))
        return self.out(x + self.narrow(torch.tanh(self.wide(x)))).square().mean()


RULES = {"use_default_specs": False, "layer_specs": [
    {"patterns": ["mix\\.weight"], "partition_type": "column", "shape": [3, -1], "partition_dim": 1},
    {"patterns": ["out"], "partition_type": "column", "gather_output": True},
    {"patterns": ["wide\\."], "partition_type": "column"}, {"patterns": ["back|narrow"], "partition_type": "row"},
    {"patterns": ["norm"], "partition_type": "skip", "grad_allreduce": True}]}


def by_rules(size, stage):
    section = {"tensor_parallel": {"autotp_size": size, "partition_config": RULES}}
    engine = capstan.initialize(Own(), {**config(size, stage), **section})
    norms = []
    for step in range(3):
        torch.manual_seed(step)
        engine.backward(engine(torch.randn(2, 5, 8)))
        engine.step()
        norms.append(engine._report.grad_norm)
    return norms, norms, engine.whole_weights(), sum(slice_of(p) is not None for p in engine.module.parameters())


@pytest.mark.parametrize("stage", [0, 3])
def test_rules_of_a_user_say_how_layers_are_split(stage):
    wanted, found = ranks.run(1, by_rules, 1, stage), ranks.run(2, by_rules, 2, stage)
    compare(found, wanted)
    assert found[0][3] == 3 * 2 + 2 + 2 + 1 + 1  # parts: of mix with its bias, of wide and out with theirs, of two rows

"""Sequence parallelism: ranks with parts of the same sequences train as one rank with the whole ones does."""

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import nn

deepspeed = pytest.importorskip("deepspeed", reason="needs the package deepspeed")
transformers = pytest.importorskip("transformers", reason="needs transformers")

from deepspeed.runtime.sequence_parallel.ulysses_sp import (  # noqa: E402
    UlyssesSPAttentionHF, UlyssesSPDataLoaderAdapter)
from deepspeed.sequence.cross_entropy import vocab_sequence_parallel_cross_entropy  # noqa: E402
from deepspeed.module_inject.tp_shard import get_shard_size_list  # noqa: E402
from deepspeed.sequence.layer import DistributedAttention, _SeqAllToAll  # noqa: E402
from deepspeed.utils import groups  # noqa: E402
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS  # noqa: E402

WORDS, LENGTH, STEPS = 32, 12, 3
LOADED = (transformers.LlamaForCausalLM,)  # once here and not in every rank, which is forked from this process


def llama(key_heads=2):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=WORDS, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=key_heads, max_position_embeddings=64,
                                      attn_implementation="sdpa")
    return transformers.LlamaForCausalLM(config)


def sample(number, documents=1):
    """One of many; its last label counts for nothing, and neither do some others."""
    torch.manual_seed(100 + number)
    tokens = torch.randint(WORDS, (1, LENGTH))
    labels = tokens.clone()
    labels[0, :number % 5] = -100
    positions = torch.arange(LENGTH // documents).repeat(documents)[None]
    return {"input_ids": tokens, "position_ids": positions, "labels": labels}


def config(stage, size, **more):
    return {"train_micro_batch_size_per_gpu": 1, "sequence_parallel_size": size, "gradient_clipping": 0.5,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}, **more}


def token_losses(logits, labels):
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="sum")


def loss_of(engine, batch, group):
    """Our share of the mean over all tokens of the sequence, and the mean itself."""
    labels = batch.pop("shift_labels")
    counted = (labels != -100).sum()
    if group is not None:
        dist.all_reduce(counted, group=group)
    share = token_losses(engine(**batch, use_cache=False).logits, labels) / counted
    mean = share.detach().clone()
    if group is not None:
        dist.all_reduce(mean, group=group)
    return share, mean.item()


def shifted(batch):
    labels = batch.pop("labels")
    return {**batch, "shift_labels": nn.functional.pad(labels, (0, 1), value=-100)[:, 1:]}


def batches(size, documents):
    """Samples for this rank's data-parallel place, all of each or our part of it."""
    place, part = divmod(dist.get_rank(), size)
    dealt = dist.get_world_size() // size
    for step in range(STEPS):
        whole = shifted(sample(step * dealt + place, documents))
        yield {key: value.chunk(size, 1)[part] for key, value in whole.items()}


def trained(stage, size, key_heads, more, documents=1, early=False):
    """(losses of all data-parallel ranks' samples, weights) after a few steps."""
    with deepspeed.zero.Init(config_dict_or_path=config(stage, size, **more), enabled=early):
        model = llama(key_heads)
    mpu = UlyssesSPAttentionHF.register_with_transformers(
        model, core_attn_implementation="sdpa", sequence_parallel_size=size, micro_batch_size=1)
    engine = deepspeed.initialize(model=model, config=config(stage, size, **more), mpu=mpu)[0]
    assert engine.dp_world_size == dist.get_world_size() // size and engine.sequence_parallel_size == size
    assert engine.train_batch_size() == engine.dp_world_size * engine.gradient_accumulation_steps()
    losses = []
    for batch in batches(size, documents):
        share, mean = loss_of(engine, batch, engine.seq_parallel_group)
        engine.backward(share)
        engine.step()
        losses.append(mean)
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        return losses, [p.detach().float().clone() for p in model.parameters()]


def compare(found, wanted, rounding):
    torch.testing.assert_close(found[0], wanted[0], rtol=rounding, atol=rounding)
    torch.testing.assert_close(found[1], wanted[1], rtol=rounding, atol=rounding)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_two_ranks_with_halves_train_as_one_with_the_whole(stage):
    wanted = ranks.run(1, trained, stage, 1, 2, {})[0]
    found = ranks.run(2, trained, stage, 2, 2, {})
    compare(found[0], wanted, 2e-5)
    assert found[0][0] == found[1][0]
    again = ranks.run(2, trained, stage, 2, 2, {})
    assert again[0][0] == found[0][0] and all(map(torch.equal, again[0][1], found[0][1]))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_two_sequences_over_two_ranks_each_train_as_two_ranks_do(stage):
    wanted = ranks.run(2, trained, stage, 1, 2, {})
    found = ranks.run(4, trained, stage, 2, 2, {})
    for rank in range(4):
        compare(found[rank], (wanted[rank // 2][0], wanted[0][1]), 2e-5)


@pytest.mark.parametrize("key_heads", [1, 4])
def test_four_ranks_with_quarters_train_as_one_with_the_whole(key_heads):
    """One key head is copied to all ranks and its gradient summed; four are shared."""
    wanted = ranks.run(1, trained, 3, 1, key_heads, {})[0]
    compare(ranks.run(4, trained, 3, 4, key_heads, {})[0], wanted, 2e-5)


def test_documents_in_one_sequence_do_not_see_each_other():
    wanted = ranks.run(1, trained, 2, 1, 2, {}, 3)[0]
    for size in (2, 4):  # key heads that are copied meet the mask too
        compare(ranks.run(size, trained, 2, size, 2, {}, 3)[0], wanted, 2e-5)


def test_weights_that_are_sharded_as_they_are_made_and_micro_batches():
    more = {"gradient_accumulation_steps": STEPS}
    wanted = ranks.run(1, trained, 3, 1, 2, more)[0]
    compare(ranks.run(2, trained, 3, 2, 2, more, 1, True)[0], wanted, 2e-5)


def test_half_precision_and_clipping():
    more = {"bf16": {"enabled": True}}
    compare(ranks.run(2, trained, 2, 2, 2, more)[0], ranks.run(1, trained, 2, 1, 2, more)[0], 3e-2)


def without_the_exchange():
    """What the key alone does: the two ranks' gradients are summed, not averaged."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1, bias=False)
    before = model.weight.detach().clone()
    plain = {"train_micro_batch_size_per_gpu": 1, "sequence_parallel_size": 2, "data_parallel_size": 1,
             "gradient_clipping": 0, "optimizer": {"type": "SGD", "params": {"lr": 1.0}}}
    engine = deepspeed.initialize(model=model, config=plain)[0]
    engine.backward(engine(torch.full((1, 3), 1.0 + dist.get_rank())).sum())
    engine.step()
    return (before - model.weight.detach()).flatten().tolist()


def test_gradients_of_parts_are_summed_and_the_mean_is_over_data():
    assert ranks.run(2, without_the_exchange) == [pytest.approx([3.0] * 3)] * 2


def of_groups():
    engine = deepspeed.initialize(model=nn.Linear(2, 2), config=config(1, 1), mesh_param=(2, 2))[0]
    found = {name: dist.get_process_group_ranks(group) for name, group in (
        ("engine's sequence", engine.seq_parallel_group), ("engine's data", engine.data_parallel_group),
        ("engine's both", engine.seq_data_parallel_group), ("sequence", groups._get_sequence_parallel_group()),
        ("data", groups._get_data_parallel_group()), ("both", groups._get_sequence_data_parallel_group()))}
    numbers = (groups._get_sequence_parallel_world_size(), groups._get_sequence_parallel_rank(),
               groups._get_data_parallel_world_size(), groups._get_data_parallel_rank(), engine.mp_world_size)
    return found, numbers


def test_groups_of_a_mesh_of_data_and_sequence():
    for rank, (found, numbers) in enumerate(ranks.run(4, of_groups)):
        first, part = rank - rank % 2, rank % 2
        assert found["engine's sequence"] == found["sequence"] == [first, first + 1]
        assert found["engine's data"] == found["data"] == [part, part + 2]
        assert found["engine's both"] == found["both"] == [0, 1, 2, 3]
        assert numbers == (2, part, 2, rank // 2, 1)


def of_loader():
    rank = dist.get_rank()
    UlyssesSPAttentionHF.register_with_transformers(llama(), "sdpa", 2, 1)
    from deepspeed.runtime.sequence_parallel import parallel_state_sp as mpu
    rows = [{"input_ids": torch.arange(6)[None] + 10 * (2 * i + rank), "position_ids": torch.arange(6)[None],
             "labels": torch.arange(6)[None] + 10 * (2 * i + rank), "name": f"sample {2 * i + rank}"}
            for i in range(3 - rank)]  # the second rank has fewer
    loader = UlyssesSPDataLoaderAdapter(rows, sp_rank=mpu.get_sequence_parallel_rank(), sp_group=mpu.get_sequence_parallel_group(),
                                        sp_world_size=2, device="cpu")
    first, second = list(loader), list(loader)
    errors = []
    for broken in ({"input_ids": torch.zeros(1, 5)}, {"input_ids": torch.zeros(1, 5), "position_ids": torch.zeros(1, 5)},
                   {"input_ids": torch.zeros(1, 6), "position_ids": torch.zeros(1, 6), "x": torch.zeros(6)}):
        with pytest.raises(ValueError) as caught:
            next(UlyssesSPDataLoaderAdapter([broken], mpu.get_sequence_parallel_rank(), mpu.get_sequence_parallel_group(), 2, "cpu"))
        errors.append(str(caught.value))
    return len(loader), first, len(second), errors


def test_a_loader_gives_each_rank_its_part_of_every_rank_s_batches():
    found = ranks.run(2, of_loader)
    assert [each[0] for each in found] == [6, 4]
    for rank, (_, first, second, errors) in enumerate(found):
        assert [batch["name"] for batch in first] == [f"sample {i}" for i in range(4)] and second == 4
        for i, batch in enumerate(first):
            assert batch["input_ids"].tolist() == [[10 * i + 3 * rank + k for k in range(3)]]
            assert batch["position_ids"].tolist() == [[3 * rank + k for k in range(3)]]
            labels = [10 * i + 3 * rank + k + 1 for k in range(3)]
            assert batch["shift_labels"].tolist() == [labels if rank == 0 else labels[:2] + [-100]]
            assert "labels" not in batch
        assert "position_ids" in errors[0] and "multiple of 2" in errors[1] and "x is [6]" in errors[2]


def in_eval():
    plain = ALL_ATTENTION_FUNCTIONS["sdpa"]
    model = llama().eval()
    batch = sample(0)
    with torch.no_grad():
        wanted = model(batch["input_ids"], position_ids=batch["position_ids"]).logits
        for _ in range(2):  # registering again replaces the first
            UlyssesSPAttentionHF.register_with_transformers(model, "sdpa", 2, 1, disable_in_eval=True)
        assert ALL_ATTENTION_FUNCTIONS["sdpa"] is not plain and ALL_ATTENTION_FUNCTIONS["sdpa"].attn is plain
        found = model(batch["input_ids"], position_ids=batch["position_ids"]).logits
        model.train()
        with pytest.raises(ValueError, match="12 over 2 ranks are 6; set seq_length_is_variable"):
            UlyssesSPAttentionHF.register_with_transformers(model, "sdpa", 2, 1, LENGTH, seq_length_is_variable=False)
            model(batch["input_ids"], position_ids=batch["position_ids"])
    return torch.equal(found, wanted)


def test_evaluation_can_be_left_alone():
    assert ranks.run(2, in_eval) == [True, True]


def refusals():
    register = UlyssesSPAttentionHF.register_with_transformers
    model, found = llama(), []
    assert register(model, "sdpa", 1, 1) is None
    for arguments in ((model, "flash_attention_2", 2, 1), (llama(), "sdpa", 3, 1)):
        with pytest.raises(ValueError) as caught:
            register(*arguments)
        found.append(str(caught.value))
    for name in ("eager", "flex_attention", "nobody"):
        model.config._attn_implementation = name
        with pytest.raises(ValueError) as caught:
            register(model, name, 2, 1)
        found.append(str(caught.value))
    with pytest.raises(ValueError) as caught:
        register(model, "nobody", 2, 1, seq_length_is_variable=False)
    return [*found, str(caught.value)]


def test_what_cannot_share_sequences_is_said():
    mismatch, size, eager, flex, nobody, length = ranks.run(2, refusals)[0]
    assert "does not match model config attn_implementation 'sdpa'" in mismatch
    assert "2 ranks cannot share sequences in groups of 3" in size
    assert "does not work with eager attention" in eager and "does not work with flex_attention" in flex
    assert "nobody is not an attention of transformers" in nobody and "sdpa" in nobody
    assert "seq_length is missing" in length


def own_attention(gather_idx):
    """[batch, sequence, heads, width] or [sequence, batch, heads, width]."""
    rank, group = dist.get_rank(), dist.group.WORLD
    torch.manual_seed(0)
    whole = [torch.randn(2, 8, heads, 4, dtype=torch.float64) for heads in (4, 2, 2)]
    if gather_idx == 0:
        whole = [tensor.transpose(0, 1) for tensor in whole]

    def attention(*qkv):
        heads = [tensor.movedim(gather_idx, 1).transpose(1, 2) for tensor in qkv]
        output = nn.functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
        return output.transpose(1, 2).movedim(1, gather_idx)

    parts = [tensor.chunk(2, gather_idx)[rank].clone().requires_grad_() for tensor in whole]
    output = DistributedAttention(attention, group, gather_idx=gather_idx)(*parts, 1 - gather_idx)
    output.sin().sum().backward()
    whole = [tensor.clone().requires_grad_() for tensor in whole]
    wanted = attention(*whole)
    wanted.sin().sum().backward()
    part = lambda tensor: tensor.chunk(2, gather_idx)[rank]
    torch.testing.assert_close(output, part(wanted))
    torch.testing.assert_close([p.grad for p in parts], [part(p.grad) for p in whole])


@pytest.mark.parametrize("gather_idx", [0, 1])
def test_an_attention_of_one_s_own(gather_idx):
    ranks.run(2, own_attention, gather_idx)


def uneven(heads):
    rank, group = dist.get_rank(), dist.group.WORLD
    sizes = get_shard_size_list(heads, dist.get_world_size())
    for order in ((0, 1, 2), (1, 0, 2)):  # batch or sequence first
        whole = torch.arange(2 * 9 * heads * 2.0).reshape(2, 9, heads, 2).permute(*order, 3)
        sequence = order.index(1)
        mine = whole.chunk(3, sequence)[rank].clone().requires_grad_()
        moved = _SeqAllToAll.apply(group, mine, 2, sequence, 1 - sequence)
        assert torch.equal(moved, whole.split(sizes, 2)[rank])
        back = _SeqAllToAll.apply(group, moved, sequence, 2, 1 - sequence)
        assert torch.equal(back, mine)
        (back * whole.chunk(3, sequence)[rank]).sum().backward()
        assert torch.equal(mine.grad, mine.detach())
    return sizes


def test_heads_that_ranks_cannot_share_equally_are_exchanged_one_by_one():
    assert ranks.run(3, uneven, 7) == [[3, 2, 2]] * 3
    assert ranks.run(3, uneven, 2) == [[1, 1, 0]] * 3
    assert ranks.run(3, uneven, 6) == [[2, 2, 2]] * 3


def of_cross_entropy():
    rank, group = dist.get_rank(), dist.group.WORLD
    torch.manual_seed(0)
    logits, target = torch.randn(6, 2, 5, dtype=torch.float64), torch.randint(5, (6, 2))
    mine = logits.chunk(2)[rank].clone().requires_grad_()
    losses = vocab_sequence_parallel_cross_entropy(mine, target.chunk(2)[rank], group)
    (losses * torch.arange(12).view(6, 2)).sum().backward()
    logits.requires_grad_()
    wanted = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view(6, 2)
    (wanted * torch.arange(12).view(6, 2)).sum().backward()
    torch.testing.assert_close(losses, wanted)
    torch.testing.assert_close(mine.grad, logits.grad.chunk(2)[rank])


def test_losses_of_all_tokens_from_logits_of_parts():
    ranks.run(2, of_cross_entropy)


def saved(folder):
    size = dist.get_world_size()
    model = llama()
    mpu = UlyssesSPAttentionHF.register_with_transformers(model, "sdpa", size, 1)
    engine = deepspeed.initialize(model=model, config=config(3, size), mpu=mpu)[0]
    if size == 1:
        engine.load_checkpoint(folder)
    for batch in batches(size, 1):
        engine.backward(loss_of(engine, batch, engine.seq_parallel_group)[0])
        engine.step()
    if size == 2:
        engine.save_checkpoint(folder)
        for batch in batches(size, 1):
            engine.backward(loss_of(engine, batch, engine.seq_parallel_group)[0])
            engine.step()
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        return [p.detach().clone() for p in model.parameters()]


def test_a_checkpoint_of_shared_sequences_goes_on_without_sharing(tmp_path):
    shared = ranks.run(2, saved, str(tmp_path))[0]
    torch.testing.assert_close(ranks.run(1, saved, str(tmp_path))[0], shared, rtol=2e-5, atol=2e-5)

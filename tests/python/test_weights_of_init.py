"""zero.Init gives the weights of a construction outside of it, then cast, whenever its initialisers run."""

import io
import os
import pty
import sys

import pytest
import ranks
import torch
from torch import nn

from capstan import progress

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def config(dtype):
    more = {} if dtype == "fp32" else {dtype: {"enabled": True}}
    return {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}, **more}


class LateModel(nn.Module):
    """Writes its weights in the ways that models use: functions of nn.init, methods, data, views of data."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 8, padding_idx=0)
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        nn.init.normal_(self.table.weight, std=0.02)
        self.table.weight.data[0].zero_()
        nn.init.orthogonal_(self.first.weight)
        self.first.bias.data.fill_(0.5)
        with torch.no_grad():
            self.second.weight.copy_(self.first.weight * 2)
            self.second.bias.uniform_()
        self.third = nn.Linear(self.first.weight.shape[0], self.first.weight.T.shape[0])
        nn.init.kaiming_normal_(self.third.weight)  # looks at the shape first
        assert self.third.weight.ndim == 2 and self.third.weight.nbytes == 256


def several():
    """A model of several constructors, written to when they have ended."""
    model = nn.Sequential(nn.Linear(8, 8), LateModel(), nn.Linear(8, 8))
    model.apply(lambda part: part.weight.data.normal_() if type(part) is nn.Linear else None)
    nn.init.kaiming_normal_(model[0].weight)
    return model


def gpt2():
    import transformers
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2))


def llama():
    import transformers
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2))


def different(build, dtype):
    """Names of the tensors that differ from those of a plain construction, cast."""
    import deepspeed

    torch.manual_seed(5)
    plain = build()
    torch.manual_seed(5)
    with deepspeed.zero.Init(config_dict_or_path=config(dtype)):
        sharded = build()
    after = torch.rand(3)
    torch.manual_seed(5)
    build()
    assert torch.equal(after, torch.rand(3))  # neither more nor fewer numbers were drawn
    found = []
    for (name, p), (other, q) in zip(plain.named_parameters(), sharded.named_parameters(), strict=True):
        assert name == other and q.shape == (0,) and q.dtype == q.ds_tensor.dtype == DTYPES[dtype]
        with deepspeed.zero.GatheredParameters([q]):
            if q.dtype != DTYPES[dtype] or not torch.equal(p.data.to(DTYPES[dtype]), q.data):
                found.append(name)
    return found


def all_different(builders):
    return [(build.__name__, dtype, found) for build in builders for dtype in DTYPES
            if (found := different(build, dtype))]


def test_initialisers_of_a_complete_model_see_whole_parameters():
    assert ranks.run(2, all_different, [LateModel, several]) == [[], []]


@pytest.mark.parametrize("world", [1, 2])
def test_hugging_face_s_models_have_the_weights_of_a_plain_construction(world):
    pytest.importorskip("transformers", reason="needs the package transformers")
    import hugging_face  # noqa: F401  loads what the ranks need
    assert ranks.run(world, all_different, [gpt2, llama]) == [[]] * world


def dtypes_on_the_way(folder):
    """What code sees before the context ends, and who else may end the construction."""
    import deepspeed
    import transformers
    found = {}
    with deepspeed.zero.Init(config_dict_or_path=config("bf16")):
        model = nn.Linear(4, 4)
        found["inside"] = model.weight.dtype
        with deepspeed.zero.Init(config_dict_or_path=config("bf16")):
            nested = nn.Linear(4, 4)
        found["nested"] = nested.weight.dtype
        with torch.device("meta"):
            empty = nn.Linear(4, 4)
        empty.to_empty(device="cpu")
        assert empty.weight.ds_tensor.numel() == 8
        counter = nn.Module()
        counter.register_parameter("steps", nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False))
        engine, *_ = deepspeed.initialize(model=nested, model_parameters=nested.parameters(), config={
            **config("bf16"), "optimizer": {"type": "AdamW", "params": {"lr": 0.1}}})
        found["engine"] = engine.module.weight.dtype
        loss = engine(torch.ones(1, 4, dtype=torch.bfloat16)).float().sum()
        engine.backward(loss)
        engine.step()
        later = nn.Linear(4, 4)
    found["after"] = {p.dtype for part in (model, empty, later) for p in part.parameters()}
    torch.manual_seed(3)
    stored = gpt2()
    if torch.distributed.get_rank() == 0:
        stored.save_pretrained(folder)
    torch.distributed.barrier()
    for asked in (torch.float32, torch.bfloat16):
        plugin = transformers.integrations.HfDeepSpeedConfig(config("bf16"))
        loaded = transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=asked)
        del plugin
        with deepspeed.zero.GatheredParameters(loaded.parameters()):
            found[asked] = all(p.dtype == torch.bfloat16 and torch.equal(p.data, q.data.bfloat16())
                               for p, q in zip(loaded.parameters(), stored.parameters()))
    return found


def test_parameters_take_their_dtype_when_the_context_ends_or_an_engine_takes_them(tmp_path):
    pytest.importorskip("transformers", reason="needs the package transformers")
    expected = {"inside": torch.float32, "nested": torch.float32, "engine": torch.bfloat16,
                "after": {torch.bfloat16}, torch.float32: True, torch.bfloat16: True}
    assert ranks.run(2, dtypes_on_the_way, str(tmp_path)) == [expected, expected]


class Layer(nn.Linear):
    """Counts what is whole while it is initialised: itself, and what others have left."""

    made, largest = [], 0

    def reset_parameters(self):
        super().reset_parameters()
        Layer.made.append(self)
        with torch._C.DisableTorchFunction():  # shapes as they are in memory
            whole = sum(p.shape.numel() for part in Layer.made for p in part._parameters.values())
        Layer.largest = max(Layer.largest, whole)


def most_that_was_whole(sharded):
    import deepspeed
    with deepspeed.zero.Init(config_dict_or_path=config("bf16"), enabled=sharded):
        nn.Sequential(*[Layer(16, 16) for _ in range(5)])
    return Layer.largest


def test_never_more_than_one_layer_is_whole_in_construction():
    assert ranks.run(2, most_that_was_whole, True) == [16 * 16 + 16] * 2
    assert ranks.run(1, most_that_was_whole, False) == [5 * (16 * 16 + 16)]


def what_is_shown(terminal, patience):
    """What a construction writes to stderr."""
    import deepspeed
    progress.PATIENCE_S, progress.REDRAW_S, progress.LINE_S = patience, 0, 0
    reader, writer = pty.openpty() if terminal else os.pipe()
    kept, sys.stderr = sys.stderr, io.TextIOWrapper(os.fdopen(writer, "wb", 0), write_through=True)
    with deepspeed.zero.Init(config_dict_or_path=config("bf16")):
        LateModel()
    sys.stderr.write("end")
    sys.stderr = kept
    text = b""
    while not text.endswith(b"end"):
        text += os.read(reader, 4096)
    return text.decode().removesuffix("end")


def test_a_long_construction_says_what_it_does():
    plain, silent_peer = ranks.run(2, what_is_shown, False, 0)
    lines = plain.splitlines()
    assert silent_peer == "" and "\r" not in plain and len(lines) > 3
    assert lines[0].startswith("zero.Init: 1 tensors with 0.0 M parameters, ")
    assert lines[-1].startswith("zero.Init: 7 tensors with 0.0 M parameters, 6 of them initialised by the model, ")
    bar = ranks.run(1, what_is_shown, True, 0)[0]
    assert "\r" in bar and f"[{'#' * 24}]" in bar and bar.count("\n") == 1
    assert ranks.run(1, what_is_shown, True, 3600) == [""]

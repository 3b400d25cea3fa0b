"""Operations per module: equal to torch's own counter on ten models of Hugging Face's, to a count by hand, at every ZeRO stage,
and without changing a result."""

import copy

import pytest
import ranks
import torch
from ranks import alone
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import capstan
from capstan.profiler import PHASES, Profile

deepspeed = pytest.importorskip("deepspeed", reason="needs the package deepspeed")

IDS = torch.arange(24).reshape(2, 12) % 64
SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


def hugging_face(name, experts="eager"):
    """(model, its arguments). Eager: torch's counter has no formula for the fused attention of CPUs, nor for grouped products."""
    hf = pytest.importorskip("transformers")
    grouped, text = {**SIZES, "num_key_value_heads": 2}, {"input_ids": IDS, "labels": IDS}
    lm, eager = hf.AutoModelForCausalLM.from_config, {"attn_implementation": "eager"}
    both = {f"{side}_{what}": size for side in ("encoder", "decoder")
            for what, size in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 64))}
    made = {
        "gpt2": lambda: lm(hf.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4), **eager),
        "llama": lambda: lm(hf.LlamaConfig(**grouped), **eager),
        "qwen2": lambda: lm(hf.Qwen2Config(**grouped), **eager),
        "mistral": lambda: lm(hf.MistralConfig(**grouped), **eager),
        "mixtral": lambda: lm(hf.MixtralConfig(**grouped, num_local_experts=4), **eager, experts_implementation=experts),
        "opt": lambda: lm(hf.OPTConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64,
                                       word_embed_proj_dim=32), **eager),
        "bert": lambda: hf.BertForMaskedLM._from_config(hf.BertConfig(**SIZES), **eager),
        "t5": lambda: hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2,
                                                                num_heads=4, decoder_start_token_id=0)),
        "blenderbot": lambda: hf.BlenderbotForConditionalGeneration._from_config(
            hf.BlenderbotConfig(vocab_size=64, d_model=32, max_position_embeddings=32, **both), **eager),
        "vit": lambda: hf.ViTForImageClassification._from_config(
            hf.ViTConfig(**{**SIZES, "image_size": 32, "patch_size": 8}, num_labels=4), **eager),
    }[name]
    torch.manual_seed(0)
    images = {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 1])}
    return made().train(), images if name == "vit" else text


NAMES = ("gpt2", "llama", "qwen2", "mistral", "mixtral", "opt", "bert", "t5", "blenderbot", "vit")


def gradients(model, batch, counter):
    """(the gradients of one pass, flops of forward as the counter says)"""
    model.zero_grad()
    torch.manual_seed(1)  # of dropout
    with counter:
        loss = model(**batch).loss
        forward = counter.get_total_flops() if isinstance(counter, FlopCounterMode) else None
        loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None], forward


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", NAMES)
@alone
def test_counts_are_those_of_torch_and_gradients_stay_the_same(name, recompute):
    model, batch = hugging_face(name)
    if recompute:
        model.gradient_checkpointing_enable()
    counter, profile = FlopCounterMode(display=False), Profile(model)
    expected, forward = gradients(model, batch, counter)
    found, _ = gradients(model, batch, profile)
    assert profile.root.flops("forward") == forward > 0
    assert sum(map(profile.root.flops, PHASES)) == counter.get_total_flops()
    # Both factors of every product have gradients, except for pictures.
    assert profile.root.flops("backward") == 2 * forward - (name == "vit") * 2 * 2 * 16 * 192 * 32
    assert (profile.root.flops("recompute") > 0) == recompute
    assert len(found) == len(expected) and all(map(torch.equal, found, expected))
    assert profile.root.parameters == sum(p.numel() for p in model.parameters())
    assert all(profile.root.seconds(phase) > 0 for phase in PHASES[:2])


@alone
def test_grouped_products_of_experts_count_as_the_same_products_one_by_one():
    counts = []
    for experts in ("eager", "grouped_mm"):
        model, batch = hugging_face("mixtral", experts)
        with Profile(model) as profile:
            model(**batch).loss.backward()
        counts.append([profile.root.flops(phase) for phase in PHASES])
    assert counts[0] == counts[1]


@pytest.mark.parametrize("reentrant", [False, True])
@alone
def test_recomputation_counts_for_the_modules_whose_forwards_run_again(reentrant):
    # What the last module of a checkpoint gives, nobody needs again.
    first, second = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 5)), nn.Linear(5, 7)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x):
            return self.second(checkpoint(self.first, x, use_reentrant=reentrant))

    with Profile(Net()) as profile:
        profile.model(torch.ones(2, 3, requires_grad=True)).sum().backward()
    nodes = {node.name: node for node, _ in profile.root.walk()}
    assert [nodes["0"].flops(phase) for phase in PHASES] == [60, 120, 60]
    assert nodes["2"].flops("recompute") == (100 if reentrant else 0)
    assert [nodes["second"].flops(phase) for phase in PHASES] == [140, 280, 0]


class Pair(nn.Module):
    """Used twice, and gives a tuple."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, times):
        for _ in range(times):
            x = self.inner(x)
        return x, x.detach() @ x.detach().t()


@alone
def test_shared_modules_count_below_the_one_that_called_and_all_adds_up_by_hand():
    shared = nn.Linear(4, 4, bias=False)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right, self.unused = Pair(shared), Pair(shared), nn.Linear(9, 9)

        def forward(self, x):
            (a, _), (b, extra) = self.left(x, 1), self.right(x, times=2)
            return (a + b).sum() + extra.sum() * 0 + torch.mv(shared.weight, x[0]).sum()

    with Profile(Net()) as profile:
        profile.model(torch.ones(3, 4, requires_grad=True)).backward()
    tree = {node.name: node for node in profile.root.children}
    product = 2 * 3 * 4 * 4
    assert tree["left"].children[0].flops() == product and tree["right"].children[0].flops() == 2 * product
    assert tree["left"].own_flops["forward"] == tree["right"].own_flops["forward"] == 2 * 3 * 3 * 4
    assert tree["left"].children[0].calls == 1 and tree["right"].children[0].calls == 2
    assert tree["right"].flops("backward") == 2 * 2 * product and tree["unused"].flops() == 0
    assert profile.root.own_flops["forward"] == 2 * 4 * 4  # torch.mv, which torch's counter does not know
    assert profile.root.parameters == 16 + 90


@alone
def test_what_torchs_counter_does_not_know_is_counted():
    query = torch.ones(1, 2, 8, 4, requires_grad=True)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(4, 5, batch_first=True)

        def forward(self, x):
            return nn.functional.scaled_dot_product_attention(query, query, query).sum() + self.lstm(x)[0].sum()

    with Profile(Net()) as profile:
        profile.model(torch.ones(2, 3, 4)).backward()
    products = 2 * 1 * 2 * 8 * 8 * 4  # of attention: scores, and values by them; five in backward, with the scores again
    assert profile.root.own_flops == {"forward": 2 * products, "backward": 5 * products, "recompute": 0}
    assert profile.root.children[0].flops() == 2 * 2 * 3 * (20 * 4 + 20 * 5)


@alone
def test_inference_mode_counts_too():
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    with torch.inference_mode(), Profile(model) as profile:
        model(torch.ones(4, 3))
    assert profile.root.flops() == 2 * 4 * (15 + 10)


@alone
def test_an_exception_in_a_forward_leaves_nothing_behind():
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(4, 2))
    with pytest.raises(RuntimeError), Profile(model) as profile:
        model(torch.ones(4, 3))
    assert profile.root.children[0].flops() == 120 and not profile.running
    assert not model[0]._forward_hooks and not model[0]._forward_pre_hooks
    with profile:
        model[0](torch.ones(4, 3))
    assert profile.root.flops() == 120


@alone
def test_a_profile_of_no_module_says_what_to_give():
    with pytest.raises(capstan.ConfigError, match="give a torch.nn.Module"):
        Profile("gpt2")


# By the engine

STEPS = 3


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.body(x)).square().mean()


def train(stage, profiled, door, output=None):
    torch.manual_seed(0)
    config = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
              "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
              "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
              "flops_profiler": {"enabled": profiled, "output_file": output, "top_modules": 2}}
    if door == "deepspeed":
        engine = deepspeed.initialize(model=Net(), config=config)[0]
    else:
        engine = capstan.initialize(Net(), config)
    for step in range(2 * STEPS):
        loss = engine(torch.arange(32.0).reshape(4, 8) / 32 + step)
        engine.backward(loss)
        engine.step()
    with capstan.gathered(list(engine.module.parameters())):
        weights = [p.detach().clone() for p in engine.module.parameters()]
    profile = engine._profile and engine._profile.profile
    figures = profile and {node.name: ([node.flops(phase) for phase in PHASES], node.parameters) for node, _ in profile.root.walk()}
    theirs = door == "deepspeed" and engine.flops_profiler
    return weights, figures, theirs and (theirs.flops, theirs.macs, theirs.params)


@pytest.mark.parametrize("door", ["deepspeed", "capstan"])
def test_the_section_profiles_one_micro_batch_at_every_stage_without_changing_a_bit(door, tmp_path):
    plain = ranks.run(2, train, 0, False, door)[0][0]
    forward = {"0": 2 * 4 * 8 * 16, "2": 2 * 4 * 8 * 16, "head": 2 * 4 * 8}
    for stage in range(4):
        output = tmp_path / "reports" / f"stage{stage}.txt"
        results = ranks.run(2, train, stage, True, door, str(output))
        weights, figures, theirs = results[0]
        assert all(map(torch.equal, weights, plain)) and results[1][1] is None
        assert {name: figures[name][0][0] for name in forward} == forward
        assert figures["0"][0] == [1024, 1024, 0]  # the input has no gradient
        assert figures["2"][0] == [1024, 2048, 0] and figures[""][1] == 144 + 136 + 9
        assert theirs in (False, (sum(forward.values()), sum(forward.values()) // 2, 289))
        text = output.read_text()
        assert "Profile Summary at step 1" in text and "params per GPU:" in text and "head: Linear" in text
        assert "depth 1:" in text and "Sequential 280" in text and "fwd latency" in text


def test_a_report_that_cannot_be_written_does_not_end_the_run(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert len(ranks.run(1, train, 1, True, "capstan", str(blocked / "report.txt"))[0][0]) == 6


def test_the_report_goes_to_the_screen_without_a_file(capfd):
    ranks.run(1, train, 1, True, "deepspeed")
    out = capfd.readouterr().out
    assert out.count("Profile Summary at step 1") == 1 and "body: Sequential" in out


# DeepSpeed's names


@alone
def test_get_model_profile_gives_figures_of_forward_and_leaves_the_model_as_it_was(capsys, tmp_path):
    from deepspeed.profiling.flops_profiler import get_model_profile
    model = nn.Sequential(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 24 * 24, 10))
    before = copy.deepcopy(model.state_dict())
    macs = 2 * (6 * 24 * 24 * 25 + 6 * 24 * 24 * 10)
    shape = (2, 1, 28, 28)
    assert get_model_profile(model, shape, as_string=False) == (2 * macs, macs, 156 + 34570)
    out = capsys.readouterr().out
    assert "Profile Summary" in out and "0: Conv2d" in out
    assert get_model_profile(model, args=[torch.ones(shape)], print_profile=False) == ("483.84 K", "241.92 KMACs", "34.73 K")
    assert get_model_profile(model, shape, as_string=False, print_profile=False, ignore_modules=[nn.Conv2d])[0] == 2 * macs
    get_model_profile(model, shape, detailed=False, output_file=str(tmp_path / "profile.txt"))
    assert "Every module" not in (tmp_path / "profile.txt").read_text()
    assert model.training and all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not hasattr(model[0], "__flops__") and not model[0]._forward_hooks
    with pytest.raises(AssertionError, match="args and/or kwargs"):
        get_model_profile(model)


@alone
def test_a_network_of_convolutions_has_the_figures_that_deepspeeds_users_know():
    from deepspeed.profiling.flops_profiler import get_model_profile
    layers = [nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(16, 120, 5),
              nn.Tanh(), nn.Flatten(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10)]
    found = get_model_profile(nn.Sequential(*layers), (1024, 1, 32, 32), print_profile=False, as_string=False)
    assert found == (2 * 426516480, 426516480, 61706)


@alone
def test_the_profiler_object_has_the_methods_that_programs_call():
    from deepspeed.profiling.flops_profiler import FlopsProfiler, get_module_flops, get_module_macs
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    profiler = FlopsProfiler(model)
    profiler.start_profile(ignore_list=[])
    assert profiler.started
    model(torch.ones(4, 3))
    profiler.stop_profile()
    assert profiler.get_total_flops() == 200 and profiler.get_total_macs() == 100 and profiler.get_total_params() == 32
    assert profiler.get_total_flops(as_string=True) == "200 " and profiler.get_total_macs(True) == "100 MACs"
    assert get_module_flops(model[0]) == 120 and get_module_macs(model) == 100 and profiler.get_total_duration() > 0
    profiler.reset_profile()
    assert profiler.get_total_flops() == 0 and get_module_flops(model) == 0
    profiler.end_profile()
    assert not hasattr(model[0], "__flops__")


@alone
def test_numbers_as_text():
    from deepspeed.profiling.flops_profiler import duration_to_string, flops_to_string, number_to_string, params_to_string
    assert [number_to_string(n) for n in (0, 7, 1234, 2.5e6, 1e9, 3e12, 0.004, 2e-6)] == [
        "0 ", "7 ", "1.23 K", "2.5 M", "1 G", "3 T", "4 m", "2 u"]
    assert number_to_string(1234, units="M", precision=4) == "0.0012 M"
    assert (flops_to_string(2e9), params_to_string(7e9), duration_to_string(0.25)) == ("2 GFLOPS", "7 B", "250 ms")

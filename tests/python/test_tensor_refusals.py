"""What tensor ranks cannot do is said, by name, before anything is changed."""

import pytest
import ranks
import torch
import torch.distributed as dist

transformers = pytest.importorskip("transformers", reason="needs transformers")

import deepspeed  # noqa: E402
from tensor_models import build, config, sample  # noqa: E402

LOADED = (build("llama"), transformers.MixtralForCausalLM, transformers.BloomForCausalLM)


def _message(act):
    with pytest.raises(ValueError) as caught:
        act()
    return str(caught.value)


def of_models():
    mixtral = transformers.MixtralForCausalLM(transformers.MixtralConfig(
        vocab_size=32, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
        num_local_experts=2))
    bloom = transformers.BloomForCausalLM(transformers.BloomConfig(vocab_size=32, hidden_size=32, n_layer=1, n_head=4))
    plain = torch.nn.Sequential(torch.nn.Linear(4, 4))
    lora = build("llama")
    lora.model.layers[1].mlp.up_proj = torch.nn.Bilinear(4, 4, 4)
    early = config(2, 3)
    with deepspeed.zero.Init(config_dict_or_path=early):
        sharded = build("llama")
    return [_message(lambda: deepspeed.initialize(model=model, config=config(2, 3)))
            for model in (mixtral, bloom, plain, lora, sharded)]


def test_layers_that_nothing_says_how_to_split_are_named():
    mixtral, bloom, plain, other, sharded = ranks.run(2, of_models)[0]
    assert "'model.layers.*.mlp.experts' is split as 'moe_tp_experts', which is not available yet" in mixtral
    assert "nothing says how 'transformer.h.0.self_attention.query_key_value' is split" in bloom
    assert "nothing says how '0' is split" in plain
    assert "'model.layers.1.mlp.up_proj' is a Bilinear, not a torch.nn.Linear" in other
    assert "without zero.Init" in sharded


def of_heads():
    return _message(lambda: deepspeed.initialize(model=build("qwen2"), config=config(4, 1)))


def test_key_heads_that_ranks_cannot_share_equally_are_refused():
    assert "'model.layers.0.self_attn' has 2 key heads, which they cannot share equally" in ranks.run(4, of_heads)[0]


def of_inputs(what):
    engine = deepspeed.initialize(model=build("llama"), config=config(2, 1))[0]
    rank = dist.get_rank()
    batch = sample(rank if what == "batches" else 0)
    torch.manual_seed(rank if what == "seeds" else 0)
    return _message(lambda: engine(**batch))


def test_ranks_of_one_model_with_different_batches_or_seeds_are_told():
    for message in ranks.run(2, of_inputs, "batches"):
        assert "different batches" in message and "DistributedSampler" in message
    for message in ranks.run(2, of_inputs, "seeds"):
        assert "different random numbers" in message


def of_state_dicts():
    engine = deepspeed.initialize(model=build("llama"), config=config(2, 1))[0]
    return [_message(engine.state_dict), _message(engine.module_state_dict),
            _message(lambda: engine.load_module_state_dict(engine.module.state_dict()))]


def test_state_dicts_of_parts_are_refused():
    for message in ranks.run(2, of_state_dicts)[0]:
        assert "split between 2 ranks" in message


def with_both(more):
    return _message(lambda: deepspeed.initialize(model=build("llama"), config=config(2, 1, **more)))


def test_what_does_not_work_beside_it():
    assert "cannot share sequences" in ranks.run(4, with_both, {"sequence_parallel_size": 2})[0]
    lamb = {"optimizer": {"type": "Lamb", "params": {"lr": 1e-3}}}
    assert "lamb" in ranks.run(2, with_both, lamb)[0]


def of_pipeline():
    model = deepspeed.PipelineModule([torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)], num_stages=2, loss_fn=torch.nn.MSELoss())
    return _message(lambda: deepspeed.initialize(model=model, config=config(2, 1)))


def test_a_pipeline_is_refused():
    assert "the layers of a pipeline" in ranks.run(4, of_pipeline)[0]


def of_rules(rules, kind="llama"):
    section = {"tensor_parallel": {"autotp_size": 2, "partition_config": rules}}
    return _message(lambda: deepspeed.initialize(model=build(kind), config={**config(2, 1), **section}))


def test_rules_that_cannot_be_followed_are_named():
    column = {"patterns": [".*q_proj.weight"], "partition_type": "column"}
    cases = [({"layer_specs": [column], "use_default_specs": False, "strict_mode": True}, "no rule says how 'model.layers.0.self_attn.k_proj' is split"),
             ({"layer_specs": [{**column, "patterns": ["(x"]}]}, "no regular expression"),
             ({"layer_specs": [{**column, "patterns": [".*norm.weight"]}]}, "'model.norm' is a LlamaRMSNorm, not a torch.nn.Linear"),
             ({"layer_specs": [{**column, "partition_type": "both"}]}, "layer_specs[0].partition_type")]
    for rules, words in cases:
        assert words in ranks.run(2, of_rules, rules)[0]
    tied = {"layer_specs": [{"patterns": ["lm_head"], "partition_type": "column", "gather_output": True}], "use_default_specs": False}
    assert "only one of them is split" in ranks.run(2, of_rules, tied, "qwen2")[0]

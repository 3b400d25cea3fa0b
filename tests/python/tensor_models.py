"""Small models of transformers, and what they learn, for tests of tensor parallelism."""

import torch
import torch.distributed as dist
import transformers

WORDS, LENGTH, STEPS = 32, 8, 3
_PLAIN = {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
          "bos_token_id": 1, "eos_token_id": 2}


def _llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**_PLAIN, num_key_value_heads=4, mlp_bias=True, attention_bias=True))


def _qwen2():
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**_PLAIN, num_key_value_heads=2, tie_word_embeddings=True))


def _qwen3():
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**_PLAIN, num_key_value_heads=2, head_dim=8, pad_token_id=20))


def _gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=WORDS, n_positions=16, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        bos_token_id=1, eos_token_id=2))


def _bert():
    return transformers.BertForMaskedLM(transformers.BertConfig(
        **_PLAIN, max_position_embeddings=16, hidden_dropout_prob=0, attention_probs_dropout_prob=0))


def _opt():
    return transformers.OPTForCausalLM(transformers.OPTConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=48, max_position_embeddings=16,
        word_embed_proj_dim=16, dropout=0, bos_token_id=1, eos_token_id=2))


def _t5():
    return transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=WORDS, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0, decoder_start_token_id=0))


def _phi3():
    return transformers.Phi3ForCausalLM(transformers.Phi3Config(**_PLAIN, num_key_value_heads=2, pad_token_id=0))


BUILD = {"llama": _llama, "qwen2": _qwen2, "qwen3": _qwen3, "gpt2": _gpt2, "bert": _bert, "opt": _opt, "t5": _t5, "phi3": _phi3}


def build(kind):
    torch.manual_seed(0)
    model = BUILD[kind]()
    with torch.no_grad():  # biases and norms that are no longer all zeros and ones
        for param in model.parameters():
            param.add_(torch.randn(param.shape) * 0.05)
    return model


def sample(number):
    torch.manual_seed(100 + number)
    tokens = torch.randint(WORDS, (2, LENGTH))
    tokens[0, 1] = 20  # the one that some models pad with
    return {"input_ids": tokens, "labels": tokens.clone()}


def config(size, stage=0, **more):
    """Steps whose changes are in proportion to gradients, so that rounding stays rounding; each of them is clipped."""
    return {"train_micro_batch_size_per_gpu": 2, "tensor_parallel": {"autotp_size": size}, "gradient_clipping": 0.5,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "eps": 1e-2}},
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 40}, **more}


def learn(engine, size, norm, steps=range(STEPS)):
    """(losses, norms) of a few steps; ranks that share a model see the same."""
    place, dealt = dist.get_rank() // size, dist.get_world_size() // size
    losses, norms = [], []
    for step in steps:
        loss = engine(**sample(step * dealt + place)).loss
        losses.append(loss.item())
        engine.backward(loss)
        engine.step()
        norms.append(float(norm(engine)))
    return losses, norms

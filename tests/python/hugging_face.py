"""A tiny model of Hugging Face's, data for it, and the Trainer's arguments on CPU ranks."""

import accelerate
import torch
import transformers

import deepspeed  # noqa: F401

# Loaded once here and not in every rank, which is forked from this process.
LOADED = (accelerate.Accelerator, accelerate.DeepSpeedPlugin, transformers.Trainer, transformers.Seq2SeqTrainer,
          transformers.GPT2LMHeadModel, transformers.BartForConditionalGeneration)

VOCABULARY = 64


def config_of(stage, **more):
    return {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
            "train_batch_size": "auto", "gradient_clipping": "auto",
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0,
                                  "stage3_gather_16bit_weights_on_model_save": True,
                                  "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto"},
            "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto",
                                                      "weight_decay": "auto"}},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
                                                         "warmup_num_steps": "auto"}}, **more}


def tiny_config():
    return transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=32, n_embd=32, n_layer=2, n_head=2,
                                   resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=2)


def data(count):
    rows = [(torch.arange(16) + start) % 4 + 5 for start in range(count)]  # four tokens that follow each other
    return [{"input_ids": row, "labels": row, "attention_mask": torch.ones_like(row)} for row in rows]


def arguments(folder, deepspeed, **more):
    """Of a Trainer; without a configuration for deepspeed it is DistributedDataParallel's."""
    return transformers.TrainingArguments(
        output_dir=folder, deepspeed=deepspeed, use_cpu=deepspeed is None, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        max_steps=4, learning_rate=1e-2, logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True,
        max_grad_norm=1.0, seed=5, **more)

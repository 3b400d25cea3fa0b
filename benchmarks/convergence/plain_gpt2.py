#!/usr/bin/env python3
"""plain_gpt2.py WEIGHTS TOKENS METRICS OUT: the run that METRICS tells of, as a plain PyTorch loop.

WEIGHTS  the model's initial weights, as `capstan train --no-optimizer-step --max-steps 1 --save` wrote them
TOKENS   the .bin file, read in order (`capstan train --no-shuffle`)
METRICS  what `capstan train --metrics` wrote: its learning rates are used, step by step
OUT      one JSON object with step and loss per line
Hugging Face's GPT-2 in fp32 with autocast to bf16, PyTorch's fused AdamW, clipping at 1.
"""
import argparse
import json

import numpy as np
import torch
from safetensors import safe_open
from transformers import GPT2Config, GPT2LMHeadModel


def load(path):
    tensors = {}
    with safe_open(path, "pt") as file:
        for name in file.keys():
            tensors[name] = file.get_tensor(name).float()
    rows, width = tensors["transformer.wte.weight"].shape
    layers = 1 + max(int(n.split(".")[2]) for n in tensors if n.startswith("transformer.h."))
    config = GPT2Config(vocab_size=rows, n_embd=width, n_layer=layers, n_head=width // 64, resid_pdrop=0,
                        embd_pdrop=0, attn_pdrop=0, use_cache=False, attn_implementation="sdpa")
    model = GPT2LMHeadModel(config)
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unexpected, (missing, unexpected)
    return model.cuda()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights")
    parser.add_argument("tokens")
    parser.add_argument("metrics")
    parser.add_argument("out")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    a = parser.parse_args()
    rates = [line["lr"] for line in map(json.loads, open(a.metrics)) if "lr" in line]
    tokens = np.memmap(a.tokens, np.uint16, "r")
    model = load(a.weights)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0, betas=(0.9, 0.95), weight_decay=a.weight_decay,
                                  fused=True)
    offsets = np.arange(a.batch)[:, None] * a.length + np.arange(a.length + 1)[None, :]
    with open(a.out, "w") as out:
        for step, rate in enumerate(rates):
            window = torch.from_numpy(tokens[step * a.batch * a.length + offsets].astype(np.int64)).cuda()
            optimizer.param_groups[0]["lr"] = rate
            with torch.autocast("cuda", torch.bfloat16):
                logits = model(input_ids=window[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), window[:, 1:].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            out.write(json.dumps({"step": step + 1, "loss": loss.item()}) + "\n")


if __name__ == "__main__":
    main()

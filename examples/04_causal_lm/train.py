"""Fine-tunes a causal language model through Accelerate; started by `accelerate launch`.

    accelerate launch --config_file zero3.yaml train.py --size tiny --steps 20
"""

import argparse
import os
import time

import torch
from accelerate import Accelerator
from accelerate.utils import DummyOptim, DummyScheduler
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup

SIZES = {"tiny": (64, 2, 2, 256), "xl": (1600, 48, 25, 50257)}  # hidden, layers, heads, vocabulary


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--model_name_or_path", help="a folder with a pretrained model, instead of --size")
    parser.add_argument("--block_size", type=int, default=64)
    parser.add_argument("--per_device_train_batch_size", type=int, default=4)
    parser.add_argument("--learning_rate", type=float, default=5e-4)
    parser.add_argument("--weight_decay", type=float, default=0.0)
    parser.add_argument("--num_warmup_steps", type=int, default=0)
    parser.add_argument("--num_train_epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps per epoch, of generated text")
    parser.add_argument("--with_tracking", action="store_true")
    parser.add_argument("--report_to", default="tensorboard")
    parser.add_argument("--output_dir")
    return parser.parse_args()


def make_data(args, vocabulary, ranks):
    """Rows in which each token follows from the one before it: something to learn, without a download."""
    rows = args.steps * args.per_device_train_batch_size * ranks
    start = torch.randint(0, vocabulary, (rows, 1), generator=torch.Generator().manual_seed(0))
    tokens = (start + 3 * torch.arange(args.block_size)) % vocabulary
    return DataLoader([{"input_ids": row, "labels": row} for row in tokens],
                      batch_size=args.per_device_train_batch_size, shuffle=False)


def main():
    args = parse()
    on_cpu = not torch.cuda.is_available()
    plain = os.environ.get("ACCELERATE_USE_DEEPSPEED") != "true"  # what `accelerate launch` sets
    accelerator = Accelerator(cpu=on_cpu and plain,
                              log_with=args.report_to if args.with_tracking else None, project_dir=args.output_dir)
    torch.manual_seed(0)
    if args.model_name_or_path:
        model = GPT2LMHeadModel.from_pretrained(args.model_name_or_path)
    else:
        hidden, layers, heads, vocabulary = SIZES[args.size]
        model = GPT2LMHeadModel(GPT2Config(n_embd=hidden, n_layer=layers, n_head=heads, vocab_size=vocabulary,
                                           n_positions=max(64, args.block_size), bos_token_id=0, eos_token_id=0))
    plugin = accelerator.state.deepspeed_plugin
    given = {} if plugin is None else plugin.deepspeed_config
    total, ranks = args.steps * args.num_train_epochs, accelerator.num_processes  # Accelerate counts steps of all ranks
    if "optimizer" in given:
        optimizer = DummyOptim(model.parameters(), lr=args.learning_rate, weight_decay=args.weight_decay)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, weight_decay=args.weight_decay)
    if "scheduler" in given:
        schedule = DummyScheduler(optimizer, total_num_steps=total * ranks, warmup_num_steps=args.num_warmup_steps * ranks)
    else:
        schedule = get_linear_schedule_with_warmup(optimizer, args.num_warmup_steps * ranks, total * ranks)
    data = make_data(args, model.config.vocab_size, ranks)
    model, optimizer, data, schedule = accelerator.prepare(model, optimizer, data, schedule)
    if args.with_tracking:
        accelerator.init_trackers("causal_lm", vars(args))
    step, begin = 0, time.time()
    for epoch in range(args.num_train_epochs):
        for batch in data:
            loss = model(**batch).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)  # the engine does it by its configuration
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step += 1
            if args.with_tracking:
                accelerator.log({"train_loss": loss.item()}, step=step)
            if step == 1 or step == total:
                accelerator.print(f"step {step}: loss {loss.item():.3f}")
    accelerator.print(f"{step / (time.time() - begin):.1f} steps/s with {accelerator.distributed_type.value}")
    if args.output_dir:
        accelerator.save_model(model, args.output_dir)
    # The model goes before the ranks part: DistributedDataParallel's end may otherwise wait for a thread of Gloo's that
    # waits for the interpreter.
    model, optimizer, schedule = accelerator.free_memory(model, optimizer, schedule)
    accelerator.end_training()


if __name__ == "__main__":
    main()

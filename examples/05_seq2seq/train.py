"""Fine-tunes a BlenderBot through Accelerate and evaluates it with beam search; started by `accelerate launch`.

    accelerate launch --config_file ../04_causal_lm/zero3.yaml train.py --num_beams 10
"""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import DummyOptim, DummyScheduler, InitProcessGroupKwargs
from torch.utils.data import DataLoader
from transformers import BlenderbotConfig, BlenderbotForConditionalGeneration, get_linear_schedule_with_warmup

PAD, BEGIN, END, FIRST = 0, 1, 2, 3


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model_name_or_path", help="a folder with a pretrained model, instead of a tiny random one")
    parser.add_argument("--max_source_length", type=int, default=16)
    parser.add_argument("--max_target_length", type=int, default=16)
    parser.add_argument("--val_max_target_length", type=int, default=12)
    parser.add_argument("--val_min_target_length", type=int, default=6)
    parser.add_argument("--num_beams", type=int, default=10)
    parser.add_argument("--n_train", type=int, default=128)
    parser.add_argument("--n_val", type=int, default=8)
    parser.add_argument("--per_device_train_batch_size", type=int, default=8)
    parser.add_argument("--per_device_eval_batch_size", type=int, default=2)
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    parser.add_argument("--weight_decay", type=float, default=0.0)
    parser.add_argument("--num_train_epochs", type=int, default=1)
    parser.add_argument("--with_tracking", action="store_true")
    parser.add_argument("--report_to", default="tensorboard")
    parser.add_argument("--output_dir")
    return parser.parse_args()


def make_data(count, length, vocabulary, batch_size):
    """The answer is the question shifted by one token."""
    source = torch.randint(FIRST, vocabulary - 1, (count, length), generator=torch.Generator().manual_seed(0))
    rows = [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row + 1} for row in source]
    return DataLoader(rows, batch_size=batch_size)


def main():
    args = parse()
    backend = None if torch.cuda.is_available() else "gloo"
    accelerator = Accelerator(kwargs_handlers=[InitProcessGroupKwargs(backend=backend)] if backend else [],
                              log_with=args.report_to if args.with_tracking else None, project_dir=args.output_dir)
    torch.manual_seed(0)
    if args.model_name_or_path:
        model = BlenderbotForConditionalGeneration.from_pretrained(args.model_name_or_path)
    else:
        model = BlenderbotForConditionalGeneration(BlenderbotConfig(
            vocab_size=64, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
            decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64,
            pad_token_id=PAD, bos_token_id=BEGIN, eos_token_id=END, decoder_start_token_id=BEGIN,
            forced_eos_token_id=None))
    vocabulary = model.config.vocab_size
    data = make_data(args.n_train, args.max_source_length, vocabulary, args.per_device_train_batch_size)
    validation = make_data(args.n_val, args.max_source_length, vocabulary, args.per_device_eval_batch_size)
    given = {} if accelerator.state.deepspeed_plugin is None else accelerator.state.deepspeed_plugin.deepspeed_config
    total = args.num_train_epochs * max(1, len(data) // accelerator.num_processes)
    kinds = (DummyOptim, DummyScheduler) if "optimizer" in given else (torch.optim.AdamW, None)
    optimizer = kinds[0](model.parameters(), lr=args.learning_rate, weight_decay=args.weight_decay)
    if kinds[1] is None:
        schedule = get_linear_schedule_with_warmup(optimizer, 0, total * accelerator.num_processes)
    else:
        schedule = kinds[1](optimizer, total_num_steps=total, warmup_num_steps=0)
    model, optimizer, data, validation, schedule = accelerator.prepare(model, optimizer, data, validation, schedule)
    if args.with_tracking:
        accelerator.init_trackers("seq2seq", vars(args))
    step = 0
    for epoch in range(args.num_train_epochs):
        for batch in data:
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step += 1
            if args.with_tracking:
                accelerator.log({"train_loss": loss.item()}, step=step)
            if step in (1, total):
                accelerator.print(f"step {step}: loss {loss.item():.3f}")
    model.eval()
    lengths = []
    for batch in validation:
        with torch.no_grad():
            tokens = accelerator.unwrap_model(model).generate(
                batch["input_ids"], attention_mask=batch["attention_mask"], num_beams=args.num_beams,
                max_length=args.val_max_target_length, min_length=args.val_min_target_length, synced_gpus=True)
        lengths.append(tokens.shape[1])
    accelerator.print(f"beam search with {args.num_beams} beams: {len(lengths)} batches, up to {max(lengths)} tokens")
    if args.output_dir:
        accelerator.save_model(model, args.output_dir)
    accelerator.end_training()


if __name__ == "__main__":
    main()

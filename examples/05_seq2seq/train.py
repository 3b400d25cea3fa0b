"""Fine-tunes a BlenderBot through Accelerate and evaluates it with beam search; started by `accelerate launch`.

    accelerate launch --config_file zero2.yaml train.py --num_beams 10
"""

import argparse
import os
import time

import torch
from accelerate import Accelerator
from accelerate.utils import DummyOptim, DummyScheduler, set_seed
from torch.utils.data import DataLoader
from transformers import BlenderbotConfig, BlenderbotForConditionalGeneration, get_linear_schedule_with_warmup

PAD, BEGIN, END, FIRST, IGNORED = 0, 1, 2, 3, -100


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model_name_or_path", help="a folder with a pretrained model, instead of a tiny random one")
    parser.add_argument("--source_prefix", default="", help="a text before every question, a token for each letter")
    parser.add_argument("--max_source_length", type=int, default=12)
    parser.add_argument("--max_target_length", type=int, default=12)
    parser.add_argument("--val_max_target_length", type=int, default=12)
    parser.add_argument("--val_min_target_length", type=int, default=6)
    parser.add_argument("--n_val_batch_generations", type=int, default=2, help="batches to generate answers for")
    parser.add_argument("--n_train", type=int, default=256)
    parser.add_argument("--n_val", type=int, default=16)
    parser.add_argument("--pad_to_max_length", action="store_true", help="instead of to the longest of a batch")
    parser.add_argument("--num_beams", type=int, default=10)
    parser.add_argument("--per_device_train_batch_size", type=int, default=8)
    parser.add_argument("--per_device_eval_batch_size", type=int, default=4)
    parser.add_argument("--learning_rate", type=float, default=1e-2)
    parser.add_argument("--weight_decay", type=float, default=0.0)
    parser.add_argument("--num_train_epochs", type=int, default=1)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--num_warmup_steps", type=int, default=0)
    parser.add_argument("--seed", type=int, default=25)
    parser.add_argument("--logging_steps", type=int, default=8)
    parser.add_argument("--with_tracking", action="store_true")
    parser.add_argument("--report_to", default="tensorboard")
    parser.add_argument("--report_name", default="seq2seq")
    parser.add_argument("--output_dir")
    args = parser.parse_args()
    if len(args.source_prefix.encode()) > args.max_source_length - 4:
        parser.error("--source_prefix leaves no room in --max_source_length for a question of 4 tokens")
    return args


def make_model(args):
    if args.model_name_or_path:
        return BlenderbotForConditionalGeneration.from_pretrained(args.model_name_or_path)
    return BlenderbotForConditionalGeneration(BlenderbotConfig(
        vocab_size=64, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64, dropout=0.0,
        pad_token_id=PAD, bos_token_id=BEGIN, eos_token_id=END, decoder_start_token_id=BEGIN, forced_eos_token_id=END))


def make_data(args, count, batch_size, vocabulary, seed):
    """Questions of many lengths; the answer counts as far as the question is long. Learnt without a download."""
    generator = torch.Generator().manual_seed(seed)
    prefix = FIRST + torch.tensor(list(args.source_prefix.encode()), dtype=torch.long) % (vocabulary - FIRST)
    rows = []
    for _ in range(count):
        length = int(torch.randint(4, args.max_source_length + 1 - len(prefix), (1,), generator=generator))
        source = torch.randint(FIRST, vocabulary, (length,), generator=generator)
        rows.append((torch.cat([prefix, source]), FIRST + torch.arange(min(length, args.max_target_length))))

    def collate(rows):
        batch = {}
        for name, column, limit, fill in (("input_ids", 0, args.max_source_length, PAD),
                                          ("labels", 1, args.max_target_length, IGNORED)):
            width = limit if args.pad_to_max_length else max(len(row[column]) for row in rows)
            batch[name] = torch.stack([torch.nn.functional.pad(row[column], (0, width - len(row[column])), value=fill)
                                       for row in rows])
        return {**batch, "attention_mask": (batch["input_ids"] != PAD).long()}

    return DataLoader(rows, batch_size=batch_size, collate_fn=collate)


def make_optimizer(args, accelerator, model, steps):
    """The configuration's where it names them, else ours."""
    plugin = accelerator.state.deepspeed_plugin
    given = {} if plugin is None else plugin.deepspeed_config
    kind = DummyOptim if "optimizer" in given else torch.optim.AdamW
    optimizer = kind(model.parameters(), lr=args.learning_rate, weight_decay=args.weight_decay)
    ranks = accelerator.num_processes  # Accelerate counts the steps of all ranks
    if "scheduler" in given:
        return optimizer, DummyScheduler(optimizer, total_num_steps=steps * ranks,
                                         warmup_num_steps=args.num_warmup_steps * ranks)
    return optimizer, get_linear_schedule_with_warmup(optimizer, args.num_warmup_steps * ranks, steps * ranks)


def train(args, accelerator, model, optimizer, schedule, data):
    """One epoch. Returns the last loss."""
    model.train()
    for number, batch in enumerate(data, 1):
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)  # the engine does it by its configuration
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if number == 1 or number % args.logging_steps == 0:
            mean = accelerator.gather(loss.detach()).mean().item()
            accelerator.print(f"batch {number}: loss {mean:.3f}")
            if args.with_tracking:
                accelerator.log({"train_loss": mean}, step=number)


def evaluate(args, accelerator, model, data):
    """(loss, share of right tokens in answers that beam search finds)"""
    model.eval()
    losses, right, asked = [], 0, 0
    for number, batch in enumerate(data):
        with torch.no_grad():
            losses.append(accelerator.gather(model(**batch).loss.detach()).mean().item())
            if number >= args.n_val_batch_generations:
                continue
            answers = accelerator.unwrap_model(model).generate(
                batch["input_ids"], attention_mask=batch["attention_mask"], num_beams=args.num_beams,
                max_length=args.val_max_target_length, min_length=args.val_min_target_length,
                synced_gpus=accelerator.num_processes > 1)
        answers = accelerator.pad_across_processes(answers, dim=1, pad_index=PAD)
        answers = accelerator.gather(answers.contiguous())[:, 1:args.val_min_target_length]
        right += (answers == FIRST + torch.arange(answers.shape[1], device=answers.device)).sum().item()
        asked += answers.numel()
    return sum(losses) / len(losses), right / max(1, asked)


def main():
    args = parse()
    on_cpu = not torch.cuda.is_available()
    plain = os.environ.get("ACCELERATE_USE_DEEPSPEED") != "true"  # what `accelerate launch` sets
    accelerator = Accelerator(cpu=on_cpu and plain,
                              gradient_accumulation_steps=args.gradient_accumulation_steps,
                              log_with=args.report_to if args.with_tracking else None, project_dir=args.output_dir)
    set_seed(args.seed)
    model = make_model(args)
    vocabulary = model.config.vocab_size
    data = make_data(args, args.n_train, args.per_device_train_batch_size, vocabulary, seed=0)
    validation = make_data(args, args.n_val, args.per_device_eval_batch_size, vocabulary, seed=1)
    steps = args.num_train_epochs * len(data) // (accelerator.num_processes * args.gradient_accumulation_steps)
    optimizer, schedule = make_optimizer(args, accelerator, model, steps)
    model, optimizer, data, validation, schedule = accelerator.prepare(model, optimizer, data, validation, schedule)
    if args.with_tracking:
        accelerator.init_trackers(args.report_name, vars(args))
    for epoch in range(args.num_train_epochs):
        begin = time.time()
        train(args, accelerator, model, optimizer, schedule, data)
        middle = time.time()
        loss, right = evaluate(args, accelerator, model, validation)
        accelerator.print(f"epoch {epoch + 1}: validation loss {loss:.3f}, {100 * right:.0f} % right with "
                          f"{args.num_beams} beams; train {middle - begin:.2f} s, evaluation {time.time() - middle:.2f} s "
                          f"with {accelerator.distributed_type.value}")
        if args.with_tracking:
            accelerator.log({"validation_loss": loss, "right": right})
    if args.output_dir:
        accelerator.save_model(model, args.output_dir)
    # The model goes before the ranks part: DistributedDataParallel's end may otherwise wait for a thread of Gloo's that
    # waits for the interpreter.
    model, optimizer, schedule = accelerator.free_memory(model, optimizer, schedule)
    accelerator.end_training()


if __name__ == "__main__":
    main()

#include "capstan/cli/train/arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "capstan/models/gpt_options.h"

namespace capstan::cli::train {
namespace {

void add_model_options(CLI::App& command, ModelArguments& model) {
  command
      .add_option("--model", model.name, fmt::format("{}", fmt::join(models::gpt_names(), ", ")))
      ->capture_default_str();
  command.add_option("--layers", model.layers, "Instead of the model's own number of blocks")
      ->check(CLI::PositiveNumber);
  command.add_option("--width", model.width, "Instead of the model's own width")
      ->check(CLI::PositiveNumber);
  command.add_option("--heads", model.heads, "Instead of the model's own number of heads")
      ->check(CLI::PositiveNumber);
  command.add_option("--context", model.context, "Instead of the model's own longest sequence")
      ->check(CLI::PositiveNumber);
  command.add_option("--dropout", model.dropout, "Share of activations left out at random")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
}

void add_data_options(CLI::App& command, DataArguments& data) {
  command.add_option("--data", data.path,
                     "A text file, a folder of text files, or a .bin file of tokens (default: the "
                     "text files of the current folder)");
  command.add_option("--files", data.files,
                     "Of a folder: only files with such names, for example \"*.md,*.txt\"");
  command.add_option("--tokenizer", data.tokenizer,
                     "A Hugging Face tokenizer.json with byte-level BPE (default: learnt from the "
                     "text)");
  command.add_option("--token-bits", data.token_bits, "Of a .bin file: 16 or 32")
      ->check(CLI::IsMember({16, 32}))
      ->capture_default_str();
  command
      .add_option(
          "--vocab", data.vocab,
          fmt::format("Tokens of the vocabulary that is learnt from text (default: {}; 256: "
                      "bytes), or that a .bin file was made with",
                      kLearntVocab))
      ->check(CLI::PositiveNumber);
  command.add_option("--tokens", data.tokens, "Per sequence (default: the model's context)")
      ->check(CLI::PositiveNumber);
  command.add_flag("--no-shuffle", data.no_shuffle, "Sequences in the order of the data");
  command.add_option("--validation", data.validation, "Share of the tokens kept for validation")
      ->check(CLI::Range(0.0, 0.9))
      ->capture_default_str();
}

void add_output_options(CLI::App& command, OutputArguments& output) {
  command.add_option("--metrics", output.metrics,
                     "Write a JSON object per step to this file; a resumed run adds to it");
  command.add_option("--curve", output.curve, "Write the loss curve to this HTML file");
  command.add_option("--log-every", output.log_every, "Steps between lines of plain output")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--eval-every", output.eval_every, "Steps between validations; 0: at the end")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      .add_option("--eval-batches", output.eval_batches, "Micro-batches per rank and validation")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--sample-tokens", output.sample_tokens, "Length of the text made at the end")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      .add_option("--prompt", output.prompt,
                  "What that text begins with (default: as documents do)")
      ->capture_default_str();
}

void add_checkpoint_options(CLI::App& command, CheckpointArguments& checkpoint) {
  command.add_option("--save", checkpoint.save, "Save checkpoints into this folder");
  command.add_option("--save-every", checkpoint.save_every, "Steps between saves; 0: at the end")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command.add_option("--keep-last", checkpoint.keep_last, "Checkpoints that stay; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command.add_flag("--new-run", checkpoint.new_run,
                   "Begin anew although the folder of --save already holds checkpoints; the new "
                   "ones count as newer");
  command.add_flag("--wait-for-saves", checkpoint.wait_for_saves,
                   "Stop training while a checkpoint is written");
  command.add_option("--resume", checkpoint.resume,
                     "Go on from the newest complete checkpoint in this folder; begins anew where "
                     "there is no checkpoint at all");
}

}  // namespace

void add_options(CLI::App& command, Arguments& arguments) {
  // Of an option given twice the last counts: a Makefile's own come before the user's.
  command.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  command
      .add_option("-n,--ranks", arguments.ranks,
                  "Ranks to start here (default: one per GPU, else two)")
      ->check(CLI::PositiveNumber);
  command.add_option("--config", arguments.config, "A DeepSpeed-style JSON file");
  command.add_option("--max-steps", arguments.max_steps, "Optimizer steps")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--seed", arguments.seed, "Of weights, order of samples and dropout")
      ->capture_default_str();
  command.add_option("--device", arguments.device, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command.add_flag("--deterministic", arguments.deterministic,
                   "Equal numbers in each run on a GPU too, by slower kernels");
  command.add_flag("--no-optimizer-step", arguments.no_optimizer_step,
                   "For measuring: forward, backward and reduction only");
  command.add_flag("--no-communication", arguments.no_communication,
                   "For measuring: each rank trains alone, side by side with the others");
  add_model_options(command, arguments.model);
  add_data_options(command, arguments.data);
  add_output_options(command, arguments.output);
  add_checkpoint_options(command, arguments.checkpoint);
}

std::string default_config() {
  return R"({
  "train_micro_batch_size_per_gpu": 8,
  "gradient_clipping": 1.0,
  "bf16": {"enabled": "auto"},
  "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 4096},
  "optimizer": {
    "type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.95], "weight_decay": 0.1}
  },
  "scheduler": {
    "type": "WarmupCosineLR", "params": {
      "warmup_type": "linear", "warmup_num_steps": "auto", "total_num_steps": "auto",
      "cos_min_ratio": 0.1
    }
  }
})";
}

}  // namespace capstan::cli::train

#include "capstan/cli/train/arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "capstan/models/registry.h"

namespace capstan::cli::train {
namespace {

void add_model_options(CLI::App& command, ModelArguments& model) {
  command
      .add_option("--model", model.name, fmt::format("{}", fmt::join(models::model_names(), ", ")))
      ->capture_default_str();
  command.add_option("--layers", model.layers, "Number of blocks (default: the model's)")
      ->check(CLI::PositiveNumber);
  command.add_option("--width", model.width, "Width (default: the model's)")
      ->check(CLI::PositiveNumber);
  command.add_option("--heads", model.heads, "Number of attention heads (default: the model's)")
      ->check(CLI::PositiveNumber);
  command.add_option("--context", model.context, "Longest sequence (default: the model's)")
      ->check(CLI::PositiveNumber);
  command.add_option("--dropout", model.dropout, "Fraction of activations dropped at random")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
}

void add_data_options(CLI::App& command, DataArguments& data) {
  command.add_option("--data", data.path,
                     "A text file, a folder of text files, or a .bin file of tokens (default: the "
                     "text files of the current folder)");
  command.add_option("--files", data.files,
                     "In a folder, take only files with such names, for example \"*.md,*.txt\"");
  command.add_option(
      "--tokenizer", data.tokenizer,
      "A Hugging Face tokenizer.json with byte-level BPE (default: learned from the text)");
  command.add_option("--token-bits", data.token_bits, "Bits per token in a .bin file: 16 or 32")
      ->check(CLI::IsMember({16, 32}))
      ->capture_default_str();
  command
      .add_option("--vocab", data.vocab,
                  fmt::format("Size of the vocabulary: the one learned from text (default: {}; "
                              "256: bytes), or the one that a .bin file was made with",
                              kLearntVocab))
      ->check(CLI::PositiveNumber);
  command.add_option("--tokens", data.tokens, "Tokens per sequence (default: the model's context)")
      ->check(CLI::PositiveNumber);
  command.add_flag("--no-shuffle", data.no_shuffle, "Take sequences in the order of the data");
  command.add_option("--validation", data.validation, "Fraction of the tokens kept for validation")
      ->check(CLI::Range(0.0, 0.9))
      ->capture_default_str();
}

void add_output_options(CLI::App& command, OutputArguments& output) {
  command.add_option("--metrics", output.metrics,
                     "Write a JSON object per step to this file; a resumed run appends to it");
  command.add_option(
      "--page", output.page,
      "Show the run on a page in this folder, index.html, that follows it while it trains");
  command.add_option("--curve", output.curve, "Write a page with the loss curve to this HTML file");
  command.add_option("--log-every", output.log_every, "Steps between lines of output")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      .add_option("--eval-every", output.eval_every,
                  "Steps between validations; 0: only at the end")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      .add_option("--eval-batches", output.eval_batches,
                  "Micro-batches per rank in each validation")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      .add_option("--sample-tokens", output.sample_tokens,
                  "Length of the text that the model writes at the end; 0: none")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      .add_option("--prompt", output.prompt,
                  "The beginning of that text (default: the beginning of a document)")
      ->capture_default_str();
}

void add_measure_options(CLI::App& command, MeasureArguments& measure) {
  command
      .add_option("--profile", measure.profile,
                  "Report operations, parameters and time of every module, measured after so many "
                  "steps (default: 1)")
      ->expected(0, 1)
      ->default_str("1")
      ->check(CLI::NonNegativeNumber);
  command.add_option("--trace", measure.trace,
                     "Write a timeline of some steps on all ranks to this folder: trace.json for "
                     "ui.perfetto.dev, timeline.html for any browser");
  command.add_option("--trace-steps", measure.trace_steps,
                     "The first and the last step of the timeline, for example 3:5 (default: "
                     "capstan.trace.steps of --config, or 3:5)");
}

void add_checkpoint_options(CLI::App& command, CheckpointArguments& checkpoint) {
  command.add_option("--save", checkpoint.save, "Save checkpoints into this folder");
  command
      .add_option("--save-every", checkpoint.save_every, "Steps between saves; 0: only at the end")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command.add_option("--keep-last", checkpoint.keep_last, "Number of checkpoints to keep; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command.add_flag("--new-run", checkpoint.new_run,
                   "Start over even if the folder of --save already has checkpoints; the new ones "
                   "count as newer");
  command.add_flag("--wait-for-saves", checkpoint.wait_for_saves,
                   "Stop training while a checkpoint is written");
  command.add_option("--resume", checkpoint.resume,
                     "Continue from the newest complete checkpoint in this folder; start from the "
                     "beginning if it has none");
}

}  // namespace

std::string metrics_path(const OutputArguments& output) {
  if (!output.metrics.empty() || output.page.empty()) return output.metrics;
  return output.page + "/metrics.jsonl";
}

void add_options(CLI::App& command, Arguments& arguments) {
  // Of an option given twice the last counts: a Makefile's own come before the user's.
  command.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  command
      .add_option("-n,--ranks", arguments.ranks,
                  "Ranks to start here (default: one per GPU, or two without GPUs)")
      ->check(CLI::PositiveNumber);
  command
      .add_option("--tensor", arguments.tensor,
                  "Ranks that split every layer between them; the others see other data (default: "
                  "tensor_parallel.autotp_size of --config)")
      ->check(CLI::PositiveNumber);
  command.add_option("--config", arguments.config, "A DeepSpeed-style JSON file");
  command.add_option("--max-steps", arguments.max_steps, "Optimizer steps")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--seed", arguments.seed, "Seed of weights, sample order and dropout")
      ->capture_default_str();
  command.add_option("--device", arguments.device, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command.add_flag("--deterministic", arguments.deterministic,
                   "Give the same numbers in every run, on a GPU too, with slower kernels");
  command
      .add_option("--pipe", arguments.pipe,
                  "Stages of a pipeline: each rank has a part of the layers (default: "
                  "pipeline.stages of --config)")
      ->check(CLI::PositiveNumber);
  command
      .add_option("--schedule", arguments.schedule,
                  "Of a pipeline: 1f1b, gpipe or zb-h1 (see `capstan pipeline show`; default: "
                  "capstan.pipeline_schedule of --config)")
      ->check(CLI::IsMember({"1f1b", "gpipe", "zb-h1"}));
  command
      .add_option("--sequence", arguments.sequence,
                  "Ranks that share each sequence, as sequence_parallel_size in the configuration")
      ->check(CLI::PositiveNumber);
  command.add_flag("--no-optimizer-step", arguments.no_optimizer_step,
                   "For measuring: forward, backward and reduction only");
  command.add_flag("--no-communication", arguments.no_communication,
                   "For measuring: each rank trains alone, side by side with the others");
  add_model_options(command, arguments.model);
  add_data_options(command, arguments.data);
  add_output_options(command, arguments.output);
  add_measure_options(command, arguments.measure);
  add_checkpoint_options(command, arguments.checkpoint);
}

std::string default_config(int stages) {
  // A pipeline lives from many micro-batches, and stage 3 would gather for each of them.
  const int micro_batches = stages > 1 ? 4 * stages : 1;
  const std::string batch = stages > 1 ? fmt::format("{},\n  \"gradient_accumulation_steps\": {}",
                                                     std::max(1, 16 / micro_batches), micro_batches)
                                       : "8";
  const std::string zero =
      stages > 1 ? R"("stage": 1)" : R"("stage": 3, "stage3_param_persistence_threshold": 4096)";
  return R"({
  "train_micro_batch_size_per_gpu": )" +
         batch + R"(,
  "gradient_clipping": 1.0,
  "bf16": {"enabled": "auto"},
  "zero_optimization": {)" +
         zero + R"(},
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

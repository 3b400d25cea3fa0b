#include "capstan/cli/generate/arguments.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "capstan/models/registry.h"

namespace capstan::cli::generate {
namespace {

void add_search_options(CLI::App& command, SearchArguments& search) {
  command.add_option("--max-new-tokens", search.max_new_tokens, "Maximum length of each text")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI::Option* const sample = command.add_flag(
      "--sample", search.sample, "Draw tokens at random instead of taking the most likely one");
  command
      .add_option("--temperature", search.temperature,
                  "With --sample: lower values give more predictable text")
      ->needs(sample)
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      .add_option("--top-k", search.top_k,
                  "With --sample: draw from this many most likely tokens; 0: from all")
      ->needs(sample)
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      .add_option(
          "--top-p", search.top_p,
          "With --sample: draw from the most likely tokens that together have this probability")
      ->needs(sample)
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command.add_option("--seed", search.seed, "With --sample: seed of the random numbers")
      ->needs(sample)
      ->capture_default_str();
  CLI::Option* const beams =
      command
          .add_option("--num-beams", search.beams,
                      "Beam search: keep this many candidate texts and take the best")
          ->check(CLI::PositiveNumber)
          ->capture_default_str();
  command
      .add_option("--length-penalty", search.length_penalty,
                  "With beams: a text's score is divided by its length to this power")
      ->needs(beams)
      ->capture_default_str();
  command
      .add_option("--early-stopping", search.early_stopping,
                  "With beams: true stops as soon as that many texts are complete, never when no "
                  "better text is possible, false in between")
      ->needs(beams)
      ->check(CLI::IsMember({"true", "false", "never"}))
      ->capture_default_str();
}

}  // namespace

void add_options(CLI::App& command, Arguments& arguments) {
  command.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  command
      .add_option(
          "model", arguments.model,
          fmt::format("A folder written by capstan train --save, one checkpoint in it, or a "
                      "folder with a {} from Hugging Face (config.json, model.safetensors)",
                      models::model_titles()))
      ->required();
  CLI::Option* const words =
      command.add_option("prompt", arguments.prompts, "The beginning of each text")
          ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command
      .add_option("--prompts", arguments.prompt_file,
                  "If no prompt is given as an argument: a file with one prompt per line; -: stdin")
      ->excludes(words)
      ->capture_default_str();
  command.add_option("--tag", arguments.tag, "Tag of the checkpoint (default: the newest)");
  command.add_option("--tokenizer", arguments.tokenizer,
                     "A tokenizer.json (default: the one in the model's folder, otherwise bytes)");
  command
      .add_option("-n,--ranks", arguments.ranks,
                  "Ranks to start here (default: one per GPU, or one without GPUs)")
      ->check(CLI::PositiveNumber);
  command.add_option("--config", arguments.config,
                     "A DeepSpeed-style JSON file: stage, precision and placement of parameters");
  command.add_option("--device", arguments.device, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command
      .add_option("--context", arguments.context,
                  "Use only this many of the last tokens (default: the model's context)")
      ->check(CLI::PositiveNumber);
  command.add_option("--batch", arguments.batch, "Prompts that each rank works on at a time")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_flag("--no-cache", arguments.no_cache,
                   "Do not cache keys and values: slow, but needs less memory");
  command.add_flag("--json", arguments.json, "Print a JSON object per prompt instead of text");
  add_search_options(command, arguments.search);
}

std::string default_config() { return R"({"zero_optimization": {"stage": 0}})"; }

}  // namespace capstan::cli::generate

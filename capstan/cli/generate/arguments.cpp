#include "capstan/cli/generate/arguments.h"

#include <CLI/CLI.hpp>

namespace capstan::cli::generate {
namespace {

void add_search_options(CLI::App& command, SearchArguments& search) {
  command.add_option("--max-new-tokens", search.max_new_tokens, "Length of each text at most")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI::Option* const sample =
      command.add_flag("--sample", search.sample, "Draw each token; else the likeliest is taken");
  command.add_option("--temperature", search.temperature, "With --sample: lower is duller")
      ->needs(sample)
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--top-k", search.top_k, "With --sample: of the likeliest so many; 0: all")
      ->needs(sample)
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      .add_option("--top-p", search.top_p,
                  "With --sample: of the likeliest that make up this probability")
      ->needs(sample)
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command.add_option("--seed", search.seed, "With --sample")->needs(sample)->capture_default_str();
  CLI::Option* const beams = command
                                 .add_option("--num-beams", search.beams,
                                             "Keep so many texts and take the best at the end")
                                 ->check(CLI::PositiveNumber)
                                 ->capture_default_str();
  command
      .add_option("--length-penalty", search.length_penalty,
                  "With beams: a text's score is divided by its length to this power")
      ->needs(beams)
      ->capture_default_str();
  command
      .add_option("--early-stopping", search.early_stopping,
                  "With beams: true ends when as many texts are complete, never only when none "
                  "can become better, false in between")
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
          "A folder that capstan train --save wrote, one checkpoint in it, or a folder with "
          "Hugging Face's GPT-2 (config.json, model.safetensors)")
      ->required();
  CLI::Option* const words =
      command.add_option("prompt", arguments.prompts, "What each text begins with")
          ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command
      .add_option("--prompts", arguments.prompt_file,
                  "Without prompts as words: a file with one per line; -: stdin")
      ->excludes(words)
      ->capture_default_str();
  command.add_option("--tag", arguments.tag, "Of the checkpoint (default: the newest)");
  command.add_option("--tokenizer", arguments.tokenizer,
                     "A tokenizer.json (default: the model folder's, else bytes)");
  command
      .add_option("-n,--ranks", arguments.ranks,
                  "Ranks to start here (default: one per GPU, else one)")
      ->check(CLI::PositiveNumber);
  command.add_option("--config", arguments.config,
                     "A DeepSpeed-style JSON file: stage, precision and placement of parameters");
  command.add_option("--device", arguments.device, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command
      .add_option("--context", arguments.context,
                  "Look at so many last tokens (default: as many as the model can)")
      ->check(CLI::PositiveNumber);
  command.add_option("--batch", arguments.batch, "Prompts in work at a time, on each rank")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_flag("--no-cache", arguments.no_cache,
                   "Compute all tokens anew for each: slow, saves the cache's memory");
  command.add_flag("--json", arguments.json, "A JSON object per prompt instead of text");
  add_search_options(command, arguments.search);
}

std::string default_config() { return R"({"zero_optimization": {"stage": 0}})"; }

}  // namespace capstan::cli::generate

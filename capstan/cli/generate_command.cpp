// capstan generate: starts the ranks that make text, or becomes one.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "capstan/cli/command.h"
#include "capstan/cli/exec_engine.h"
#include "capstan/cli/generate/arguments.h"
#include "capstan/cli/generate/prompts.h"
#include "capstan/cli/piped_file.h"
#include "capstan/cli/start_ranks.h"
#include "capstan/models/registry.h"

namespace capstan::cli {

void add_generate_command(CLI::App& app, int argc, char** argv, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "generate",
      fmt::format("Generate text from prompts with a trained {}, even one that does not fit on the "
                  "device",
                  models::model_titles()));
  const auto arguments = std::make_shared<generate::Arguments>();
  generate::add_options(*command, *arguments);
  command->callback([arguments, argc, argv, &exit_code] {
    std::vector<std::string> words = own_words(argc, argv, "generate");
    const int ranks = arguments->ranks > 0 ? arguments->ranks : default_ranks(arguments->device, 1);
    if (generate::reads_stdin(*arguments)) {
      if (::isatty(STDIN_FILENO) != 0) {
        std::fputs("capstan: type prompts, one per line; Ctrl-D ends them\n", stderr);
      }
      arguments->prompt_file = "/dev/stdin";
    }
    std::vector<FileOption> files = {{"--config", &arguments->config},
                                     {"--tokenizer", &arguments->tokenizer}};
    if (arguments->prompts.empty()) files.push_back({"--prompts", &arguments->prompt_file});
    const std::vector<std::string> piped = keep_piped_files(files);
    words.insert(words.end(), piped.begin(), piped.end());
    calm_openmp_threads(arguments->config);
    if (started_as_rank() || ranks == 1) exec_engine(words);
    exit_code = start_ranks(ranks, words, [&](int, bool here) {
      if (!here) refuse_piped_elsewhere(piped);
    });
  });
}

}  // namespace capstan::cli

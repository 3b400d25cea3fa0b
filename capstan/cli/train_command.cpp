// capstan train: starts the ranks of a training run, or becomes one.
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "capstan/base/rank_env.h"
#include "capstan/cli/command.h"
#include "capstan/cli/doctor/job_record.h"
#include "capstan/cli/exec_engine.h"
#include "capstan/cli/piped_file.h"
#include "capstan/cli/start_ranks.h"
#include "capstan/cli/train/arguments.h"
#include "capstan/cli/train/config.h"
#include "capstan/cli/train/places.h"
#include "capstan/launch/machine.h"
#include "capstan/models/registry.h"

namespace capstan::cli {

void add_train_command(CLI::App& app, int argc, char** argv, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "train", fmt::format("Train a {} on text, sharded over the ranks", models::model_titles()));
  const auto arguments = std::make_shared<train::Arguments>();
  train::add_options(*command, *arguments);
  command->footer("Without --config:\n" + train::default_config());
  command->callback([arguments, argc, argv, &exit_code] {
    std::vector<std::string> words = own_words(argc, argv, "train");
    const std::vector<std::string> piped =
        keep_piped_files({{"--config", &arguments->config},
                          {"--data", &arguments->data.path},
                          {"--tokenizer", &arguments->data.tokenizer}});
    words.insert(words.end(), piped.begin(), piped.end());
    const int ranks = arguments->ranks > 0 ? arguments->ranks : default_ranks(arguments->device, 2);
    calm_openmp_threads(arguments->config);
    const std::string notes = notes_folder(arguments->checkpoint.save);
    if (started_as_rank() || ranks == 1) {
      if (!notes.empty() && !started_as_rank()) {
        std::error_code ignored;
        doctor::clear_folder(notes);
        std::filesystem::create_directories(notes, ignored);
      }
      if (!notes.empty()) ::setenv(kNotesVariable, notes.c_str(), /*overwrite=*/0);
      exec_engine(words);
    }
    exit_code = start_ranks(
        ranks, words,
        [&](int world_size, bool here) {
          const bool on_gpus =
              arguments->device != "cpu" && !launch::this_machine().devices.empty();
          train::training_config(*arguments,
                                 {arguments->no_communication ? 1 : world_size, on_gpus});
          train::sequence_length(*arguments);
          if (here) return train::check_places(*arguments);
          refuse_piped_elsewhere(piped);
        },
        notes);
  });
}

}  // namespace capstan::cli

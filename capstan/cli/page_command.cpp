// capstan page: draws the metrics files of runs.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>

#include "capstan/base/error.h"
#include "capstan/cli/command.h"
#include "capstan/cli/page/run_page.h"
#include "capstan/cli/train/stop_request.h"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;

struct PageArguments {
  std::vector<std::string> runs;
  std::string output;
  bool follow = false;
};

// Of a folder: the file that `capstan train --page` writes there.
fs::path metrics_of(const fs::path& run) {
  std::error_code error;
  if (!fs::is_directory(run, error)) return run;
  const fs::path metrics = run / "metrics.jsonl";
  if (fs::exists(metrics, error)) return metrics;
  throw ConfigError({.what = "there is no metrics.jsonl in this folder",
                     .where = run.string(),
                     .fix = "name the metrics file itself, or a folder of capstan train --page"});
}

// Beside the first run.
fs::path page_of(const PageArguments& arguments, const fs::path& metrics) {
  if (!arguments.output.empty()) return arguments.output;
  std::error_code error;
  const fs::path run = arguments.runs.front();
  if (fs::is_directory(run, error)) return page::page_in(run);
  fs::path page = metrics;
  return page.replace_extension(".html");
}

void draw(const PageArguments& arguments) {
  std::vector<fs::path> metrics;
  for (const std::string& run : arguments.runs) metrics.push_back(metrics_of(run));
  page::RunPage shown(page_of(arguments, metrics.front()), metrics);
  if (arguments.follow) {
    train::StopRequest stop([] {});
    stop.defer();
    std::printf("run page: %s, until Ctrl-C\n", shown.path().c_str());
    std::fflush(stdout);
    while (!stop.seen()) {
      shown.refresh();
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
  }
  shown.finish();
  for (const std::string& line : shown.damage()) {
    std::fprintf(stderr, "warning: %s\n", line.c_str());
  }
  std::printf("run page: %s\n", shown.path().c_str());
}

}  // namespace

void add_page_command(CLI::App& app, int& /*exit_code*/) {
  CLI::App* command =
      app.add_subcommand("page", "Draw runs on a page: loss, learning rate, speed, memory, …");
  const auto arguments = std::make_shared<PageArguments>();
  command
      ->add_option(
          "runs", arguments->runs,
          "Metrics files (capstan train --metrics, or the key capstan.metrics), or folders "
          "of capstan train --page; several are drawn over each other")
      ->required();
  command->add_option("-o,--output", arguments->output, "The page (default: beside the first run)");
  command->add_flag("--follow", arguments->follow,
                    "Keep the page up to date while the runs go on, until Ctrl-C");
  command->callback([arguments] { draw(*arguments); });
}

}  // namespace capstan::cli

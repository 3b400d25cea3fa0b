// capstan report: what this machine has, what works, and the exact fix for what does not.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <sys/utsname.h>
#include <CLI/CLI.hpp>

#include "capstan/cli/command.h"
#include "capstan/cli/report/build_facts.h"
#include "capstan/cli/report/engine_rows.h"
#include "capstan/cli/report/io_rows.h"
#include "capstan/cli/report/machine_rows.h"
#include "capstan/cli/report/rows.h"
#include "capstan/json/writer.h"

namespace capstan::cli {
namespace {

struct ReportOptions {
  bool json = false;
  std::string folder;
};

int count_gpus(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    if (row.name == "devices") return static_cast<int>(row.number.value_or(0));
  }
  return 0;
}

std::vector<Row> all_rows(const ReportOptions& options) {
  // The folder first: a wrong name should not wait for anything.
  std::vector<Row> folder;
  if (!options.folder.empty()) folder = folder_rows(options.folder);
  const std::vector<Row> gpus = gpu_rows();
  std::vector<Row> rows;
  for (const std::vector<Row>& part : {build_rows(), cpu_rows(), memory_rows(), gpus, io_rows(),
                                       folder, engine_rows(count_gpus(gpus))}) {
    rows.insert(rows.end(), part.begin(), part.end());
  }
  return rows;
}

std::string title() {
  utsname system{};
  ::uname(&system);
  return fmt::format("capstan {} on {} ({} {}, {})", build_facts().version, system.nodename,
                     system.sysname, system.release, system.machine);
}

int report(const ReportOptions& options) {
  const std::vector<Row> rows = all_rows(options);
  const bool works = basics_work(rows);
  if (options.json) {
    json::Value value{json::Object{}};
    value.add("title", json::Value(title()))
        .add("capstan", json::Value(build_facts().version))
        .add("basics_work", json::Value(works))
        .add("rows", to_json(rows));
    fmt::print("{}\n", json::write(value));
    return works ? 0 : 1;
  }
  fmt::print("{}\n\n{}\n{}\n", title(), render_text(rows),
             works ? "The basics work: this machine can train."
                   : "Something basic does not work: see FAIL above.");
  return works ? 0 : 1;
}

}  // namespace

void add_report_command(CLI::App& app, int& exit_code) {
  const auto options = std::make_shared<ReportOptions>();
  CLI::App* command = app.add_subcommand(
      "report", "Show what this machine has, what works, and how to fix the rest");
  command->add_flag("--json", options->json, "Print one JSON object instead of a table");
  command->add_option("--folder", options->folder,
                      "Also measure reading and writing in this folder (64 MiB, removed again)");
  command->callback([options, &exit_code] { exit_code = report(*options); });
}

}  // namespace capstan::cli

// capstan doctor: why a run failed or was slow, from what it left.
#include <cstdio>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "capstan/base/error.h"
#include "capstan/cli/command.h"
#include "capstan/cli/doctor/evidence.h"
#include "capstan/cli/doctor/judge.h"

namespace capstan::cli {
namespace {

struct DoctorArguments {
  std::string folder;
  std::string metrics;
};

std::string_view title(doctor::Weight weight) {
  switch (weight) {
    case doctor::Weight::cause:
      return "likely cause";
    case doctor::Weight::suspicion:
      return "suspicion";
    case doctor::Weight::remark:
      break;
  }
  return "remark";
}

void print(const doctor::Finding& finding) {
  std::fputs(fmt::format("\n{}: {}\n", title(finding.weight), finding.what).c_str(), stdout);
  for (const std::string& line : finding.evidence) {
    std::fputs(fmt::format("  {}\n", line).c_str(), stdout);
  }
  if (!finding.advice.empty()) {
    std::fputs(fmt::format("  what to do: {}\n", finding.advice).c_str(), stdout);
  }
}

int examine(const DoctorArguments& arguments) {
  const doctor::Evidence evidence = doctor::read_evidence(arguments.folder, arguments.metrics);
  if (evidence.found.empty()) {
    throw ConfigError(
        {.what = evidence.not_read.empty()
                     ? "the folder holds nothing that a run leaves for capstan doctor"
                     : fmt::format("nothing could be read: {}", fmt::join(evidence.not_read, "; ")),
         .where = arguments.folder,
         .fix = "runs leave it with `capstan train --save DIR` or `capstan launch --log-dir DIR`"});
  }
  std::fputs(fmt::format("read: {}\n", fmt::join(evidence.found, "; ")).c_str(), stdout);
  for (const std::string& each : evidence.not_read) {
    std::fputs(fmt::format("not read: {}\n", each).c_str(), stdout);
  }
  const doctor::Findings findings = doctor::judge(evidence);
  for (const doctor::Finding& finding : findings) print(finding);
  if (findings.empty()) std::fputs("\nnothing unusual was found\n", stdout);
  return 0;
}

}  // namespace

void add_doctor_command(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("doctor", "Tell why a run failed or was slow, from what it left");
  const auto arguments = std::make_shared<DoctorArguments>();
  command
      ->add_option("run", arguments->folder,
                   "The folder of `capstan train --save`, or of `capstan launch --log-dir`")
      ->required();
  command->add_option("--metrics", arguments->metrics,
                      "The file of capstan train --metrics, if it is not in that folder");
  command->callback([arguments, &exit_code] { exit_code = examine(*arguments); });
}

}  // namespace capstan::cli

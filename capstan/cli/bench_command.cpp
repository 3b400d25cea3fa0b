// capstan bench: figures of this machine, each against the bound measured in the same run.
#include <cstdint>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "capstan/base/text.h"
#include "capstan/cli/command.h"
#include "capstan/io/throughput.h"

namespace capstan::cli {
namespace {

void print_row(std::string_view name, const io::Rates& rates, const io::Rates& plain) {
  fmt::print("{:<24}  {:>8.2f}  {:>6.2f}  {:>8.2f}  {:>6.2f}\n", name, rates.write_gb_per_s,
             rates.write_gb_per_s / plain.write_gb_per_s, rates.read_gb_per_s,
             rates.read_gb_per_s / plain.read_gb_per_s);
}

int bench_io(const io::ThroughputPlan& plan) {
  const io::Throughput measured = io::measure_throughput(plan);
  fmt::print("{} in {}, blocks of {}, {} in flight, {}, median of {} rounds\n\n",
             format_bytes(plan.bytes), plan.folder.string(), format_bytes(plan.options.block_bytes),
             io::transfers_in_flight(plan.options),
             measured.direct ? "direct I/O" : "through the page cache", plan.rounds);
  fmt::print("{:<24}  {:>8}  {:>6}  {:>8}  {:>6}\n", "", "write", "ratio", "read", "ratio");
  fmt::print("{:<24}  {:>8}  {:>6}  {:>8}  {:>6}\n", "path", "GB/s", "", "GB/s", "");
  print_row("plain pread and pwrite", measured.plain, measured.plain);
  for (const io::PathRates& path : measured.paths) {
    if (path.unavailable.empty()) {
      print_row(io::to_string(path.path), path.rates, measured.plain);
    } else {
      fmt::print("{:<24}  not available: {}\n", io::to_string(path.path), path.unavailable);
    }
  }
  return 0;
}

}  // namespace

void add_bench_command(CLI::App& app, int& exit_code) {
  CLI::App* bench = app.add_subcommand("bench", "Measure this machine");
  bench->require_subcommand(1);
  const auto plan = std::make_shared<io::ThroughputPlan>();
  plan->options.queue_depth = 32;
  CLI::App* command = bench->add_subcommand(
      "io", "Measure reading and writing in GB/s for each I/O path, beside plain pread and pwrite");
  command->add_option("--folder", plan->folder, "The folder to measure in")->required();
  command->add_option("--bytes", plan->bytes, "Size of the file (default: 256 MiB)")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 50));
  command
      ->add_option("--block-bytes", plan->options.block_bytes,
                   "Size of one request (default: 1 MiB)")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30));
  command
      ->add_option("--queue-depth", plan->options.queue_depth, "Requests in flight (default: 32)")
      ->check(CLI::Range(1, 4096));
  command
      ->add_option("--rounds", plan->rounds,
                   "Repetitions, of which the median is shown (default: 3)")
      ->check(CLI::Range(1, 1000));
  command->callback([plan, &exit_code] { exit_code = bench_io(*plan); });
}

}  // namespace capstan::cli

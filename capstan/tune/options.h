// What a search for a fast configuration may try and what it looks for.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace capstan::tune {

// latency: the time of a step. throughput, flops: samples per second; the flops of a sample are the
// same in all trials, so both have the same winner.
enum class Metric { throughput, latency, flops };

// guided: changes one setting of the best configuration at a time. grid: all of them, in order.
// random: all of them, in random order.
enum class Order { guided, grid, random };

struct Options {
  bool fast = true;  // only stage, micro-batch and what the configuration lists, if that fits
  Metric metric = Metric::throughput;
  Order order = Order::guided;
  int most_trials = 50;
  int early_stopping = 5;  // trials in a row without a gain, after which it ends; 0: never
  bool overwrite = false;  // false: trials that have ended before are not repeated
  std::string results_dir = "autotuning_results";
  std::string exps_dir = "autotuning_exps";
  std::int64_t min_batch = 1;             // samples per step, over all ranks
  std::optional<std::int64_t> max_batch;  // unset: as the configuration says
  std::int64_t min_micro = 1;
  std::int64_t max_micro = 1024;
  int micro_sizes = 3;      // micro-batch sizes that are tried with each change of another setting
  int ranks_per_model = 1;  // beyond what the configuration says
  std::map<std::string, std::string> arg_mappings;  // a key's value is also given as this flag
  bool operator==(const Options&) const = default;
};

}  // namespace capstan::tune

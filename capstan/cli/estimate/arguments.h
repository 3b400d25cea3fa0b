// What `capstan estimate` and `capstan plan` are told about a model, its training and a machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "capstan/tune/machine.h"
#include "capstan/tune/workload.h"

namespace CLI {
class App;
}

namespace capstan::cli::estimate {

struct Arguments {
  std::string model = "gpt2";
  std::optional<std::int64_t> layers;  // each of these takes the place of the model's
  std::optional<std::int64_t> width;
  std::optional<std::int64_t> heads;
  std::optional<std::int64_t> context;
  std::optional<std::int64_t> vocab;
  std::int64_t tokens = 0;  // of each sequence; 0: the model's context
  double dropout = 0;

  std::string config;  // a DeepSpeed-style JSON file; empty: mixed precision and AdamW
  std::string dtype;   // empty: as `config` says, else bf16
  std::optional<std::int64_t> micro_batch;
  std::int64_t batch = 0;  // samples of a step; 0: one micro-batch of each rank

  std::string machine;  // a name or a file; empty: this one, or what the options below say
  int gpus = 1;         // in all
  std::optional<int> gpus_per_host;
  std::optional<std::int64_t> gpu_bytes;
  std::optional<std::int64_t> host_bytes;
  std::optional<std::int64_t> disk_bytes;
  bool on_cpu = false;
};

// `arguments` must outlive `command`.
void add_options(CLI::App& command, Arguments& arguments);

// Both throw ConfigError.
capstan::tune::Machine machine_of(const Arguments& arguments);
capstan::tune::Workload workload_of(const Arguments& arguments);

// "gpt2-xl, 1.56 B parameters: micro-batches of 2 x 1024 tokens in bf16 on 2 GPUs (h200, ...)"
std::string describe(const capstan::tune::Workload& workload, const capstan::tune::Machine& machine,
                     const std::string& model);

}  // namespace capstan::cli::estimate

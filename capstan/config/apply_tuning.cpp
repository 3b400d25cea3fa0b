// The options of a search for a fast configuration.
#include <algorithm>
#include <limits>

#include "capstan/base/text.h"
#include "capstan/config/apply.h"

namespace capstan::config {
namespace {

tune::Metric to_metric(const std::string& name) {
  if (name == "latency") return tune::Metric::latency;
  return name == "flops" ? tune::Metric::flops : tune::Metric::throughput;
}

tune::Order to_order(const std::string& name) {
  if (name == "gridsearch") return tune::Order::grid;
  return name == "random" ? tune::Order::random : tune::Order::guided;
}

}  // namespace

tune::Options to_tune(const Table& table) {
  const auto path = [](const char* name) { return join_path("autotuning", name); };
  const auto count = [&](const char* name) {
    const std::int64_t value = table.integer(path(name));
    return static_cast<int>(std::min<std::int64_t>(value, std::numeric_limits<int>::max()));
  };
  tune::Options options;
  options.fast = table.flag(path("fast"));
  options.metric = to_metric(table.text(path("metric")));
  options.order = to_order(table.text(path("tuner_type")));
  options.most_trials = count("tuner_num_trials");
  options.early_stopping = count("tuner_early_stopping");
  options.overwrite = table.flag(path("overwrite"));
  options.results_dir = table.text(path("results_dir"));
  options.exps_dir = table.text(path("exps_dir"));
  options.min_batch = table.integer(path("min_train_batch_size"));
  options.max_batch = table.maybe_integer(path("max_train_batch_size"));
  options.min_micro = table.integer(path("min_train_micro_batch_size_per_gpu"));
  options.max_micro = table.integer(path("max_train_micro_batch_size_per_gpu"));
  options.micro_sizes = count("num_tuning_micro_batch_sizes");
  options.ranks_per_model = count("mp_size");
  const json::Object* const flags = table.find(path("arg_mappings"))->value.object();
  for (const json::Member& flag : flags != nullptr ? *flags : json::Object{}) {
    if (const std::string* name = flag.value.text()) {
      options.arg_mappings[std::string(trim(flag.key))] = trim(*name);
    }
  }
  return options;
}

}  // namespace capstan::config

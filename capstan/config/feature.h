// Features that the schema knows by name, and whether this version has them. A key that needs a
// feature is refused as "not available yet" until its line here says true.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace capstan::config {

// Who acts on a configuration: the program, or one of the Python packages.
enum class Door { program, capstan_package, deepspeed_package };

enum class Feature {
  activations_on_host,
  amp,
  autocast,
  autotp,
  autotuning,
  checkpoint_options,
  compile,
  compression,
  curriculum,
  data_routing,
  data_sampling,
  dynamic_batching,
  elasticity,
  expert_parallel,
  flops_profiler,
  graph_capture,
  hessian_eigenvalues,
  hybrid_engine,
  layer_drop,
  mics,
  mics_two_level_gather,
  monitors,
  muon,
  near_copy,
  nebula,
  one_bit,
  optimizer_in_backward,
  optimizer_on_host,
  optimizer_on_nvme,
  params_on_host,
  params_on_nvme,
  pipeline,
  sequence_parallel,
  sparse_attention,
  sparse_gradients,
  tensor_parallel,
  unit_parametrization,
  weight_quantization,
  zenflow,
  zero_plus_plus,
};

// Without a door: whether any of them has it.
bool available(Feature feature, std::optional<Door> door = {});

// The one door that has it; unset: all of them, or none.
std::optional<Door> only_door(Feature feature);

std::vector<Feature> all_features();

// In words, for messages and documents: "optimizer state in host memory", "the package deepspeed".
std::string_view name(Feature feature);
std::string_view name(Door door);

}  // namespace capstan::config

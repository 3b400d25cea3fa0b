#include "capstan/config/feature.h"

#include <algorithm>
#include <array>

#include "capstan/base/error.h"

namespace capstan::config {
namespace {

struct FeatureState {
  Feature feature;
  bool available;
  std::string_view name;
  std::optional<Door> only = {};  // the one door that has it
};

// A feature becomes available by its one word here; keys, checks and documents follow.
constexpr std::array kFeatures = {
    FeatureState{Feature::activations_on_host, true, "activations kept in host memory"},
    FeatureState{Feature::amp, false, "Apex AMP"},
    FeatureState{Feature::autocast, true, "torch autocast", Door::deepspeed_package},
    FeatureState{Feature::autotp, true, "tensor parallelism of models that are not ours"},
    FeatureState{Feature::autotuning, true, "autotuning"},
    FeatureState{Feature::checkpoint_options, false, "node-local checkpoint storage"},
    FeatureState{Feature::compile, false, "compiling the training step"},
    FeatureState{Feature::compression, false, "model compression during training"},
    FeatureState{Feature::curriculum, true, "curriculum learning"},
    FeatureState{Feature::data_routing, true, "random layer token drop (random-LTD)",
                 Door::deepspeed_package},
    FeatureState{Feature::data_sampling, true, "samples by difficulty", Door::deepspeed_package},
    FeatureState{Feature::dynamic_batching, false,
                 "data efficiency: batches by tokens (dynamic batching)"},
    FeatureState{Feature::elasticity, false, "elastic training"},
    FeatureState{Feature::expert_parallel, false, "expert parallelism"},
    FeatureState{Feature::flops_profiler, true, "the flops profiler"},
    FeatureState{Feature::graph_capture, false, "CUDA graph capture"},
    FeatureState{Feature::hessian_eigenvalues, false, "Hessian eigenvalues"},
    FeatureState{Feature::hybrid_engine, false, "the hybrid engine"},
    FeatureState{Feature::layer_drop, true, "progressive layer drop"},
    FeatureState{Feature::mics, true, "MiCS shard groups"},
    FeatureState{Feature::mics_two_level_gather, false, "MiCS with two-level gathers"},
    FeatureState{Feature::monitors, true, "monitors"},
    FeatureState{Feature::muon, false, "Muon"},
    FeatureState{Feature::near_copy, true, "ZeRO++ hpZ (gathers among neighbours)"},
    FeatureState{Feature::nebula, false, "other checkpoint engines"},
    FeatureState{Feature::one_bit, false, "1-bit optimizers (compressed communication)"},
    FeatureState{Feature::optimizer_in_backward, true, "optimizer updates during backward"},
    FeatureState{Feature::optimizer_on_host, true, "optimizer state in host memory"},
    FeatureState{Feature::optimizer_on_nvme, true, "optimizer state on nvme"},
    FeatureState{Feature::params_on_host, true, "parameters in host memory"},
    FeatureState{Feature::params_on_nvme, true, "parameters on nvme"},
    FeatureState{Feature::pipeline, true, "pipeline parallelism"},
    FeatureState{Feature::sequence_parallel, true, "sequence parallelism"},
    FeatureState{Feature::sparse_attention, false, "sparse attention"},
    FeatureState{Feature::sparse_gradients, false, "sparse gradients of embeddings"},
    FeatureState{Feature::tensor_parallel, true, "tensor parallelism"},
    FeatureState{Feature::unit_parametrization, false, "muP optimizers"},
    FeatureState{Feature::weight_quantization, false, "quantised weights for inference"},
    FeatureState{Feature::zenflow, false, "ZenFlow"},
    FeatureState{Feature::zero_plus_plus, false, "ZeRO++ quantised communication"},
};

const FeatureState& state_of(Feature feature) {
  const auto at = std::find_if(kFeatures.begin(), kFeatures.end(),
                               [&](const FeatureState& state) { return state.feature == feature; });
  if (at == kFeatures.end()) throw InternalError({.what = "a feature without a line in kFeatures"});
  return *at;
}

}  // namespace

bool available(Feature feature, std::optional<Door> door) {
  const FeatureState& state = state_of(feature);
  return state.available && (!door || !state.only || *state.only == *door);
}

std::optional<Door> only_door(Feature feature) { return state_of(feature).only; }

std::vector<Feature> all_features() {
  std::vector<Feature> features;
  for (const FeatureState& state : kFeatures) features.push_back(state.feature);
  return features;
}

std::string_view name(Feature feature) { return state_of(feature).name; }

std::string_view name(Door door) {
  switch (door) {
    case Door::program:
      return "the program capstan";
    case Door::capstan_package:
      return "the package capstan";
    case Door::deepspeed_package:
      break;
  }
  return "the package deepspeed";
}

}  // namespace capstan::config

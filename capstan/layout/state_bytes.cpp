#include "capstan/layout/state_bytes.h"

#include <algorithm>

namespace capstan::layout {
namespace {

constexpr double kParam = 2;          // 16 bits
constexpr double kWhole = 4;          // fp32, on a host that builds the model
constexpr double kOptimizer = 16;     // master, two moments and gradients, fp32
constexpr double kEverything = 18;    // these and the parameters
constexpr double kGatheredLayer = 4;  // parameters and gradients of one layer, 16 bits

std::int64_t whole_bytes(double bytes) { return static_cast<std::int64_t>(bytes); }

}  // namespace

StateBytes stage2_state_bytes(const StateQuestion& ask) {
  const int gpus = ask.gpus_per_node * ask.nodes;
  if (ask.offload_optimizer) {
    return {.host_per_node =
                whole_bytes(ask.params * std::max(kWhole * gpus, kOptimizer) * ask.host_factor),
            .device = whole_bytes(kParam * ask.params)};
  }
  return {
      .host_per_node = whole_bytes(ask.params * kWhole * ask.gpus_per_node * ask.host_factor),
      .device = whole_bytes(kParam * ask.params) + whole_bytes(kEverything * ask.params / gpus)};
}

StateBytes stage3_state_bytes(const StateQuestion& ask) {
  const int gpus = ask.gpus_per_node * ask.nodes;
  const std::int64_t layer = whole_bytes(kGatheredLayer * ask.largest_layer);
  const double built = kWhole * ask.gpus_per_node;  // per parameter that each process holds whole
  if (!ask.offload_optimizer) {
    const double params = ask.sharded_init ? ask.largest_layer : ask.params;
    return {.host_per_node = whole_bytes(params * built * ask.host_factor),
            .device = layer + whole_bytes(kEverything * ask.params / gpus),
            .largest_layer = layer};
  }
  const double share = (ask.offload_params ? kEverything : kOptimizer) * (1.0 / ask.nodes);
  const std::int64_t params = ask.offload_params ? 0 : whole_bytes(kParam * ask.params / gpus);
  return {.host_per_node = whole_bytes(
              ask.params * (ask.sharded_init ? share : std::max(built, share)) * ask.host_factor),
          .device = layer + params,
          .largest_layer = layer};
}

}  // namespace capstan::layout

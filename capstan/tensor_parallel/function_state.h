// What an autograd function remembers beside tensors, with its type. Private to tensor_parallel.
#pragma once

#include <utility>

#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "capstan/base/error.h"

namespace capstan::tensor_parallel {

template <typename State>
struct FunctionState final : torch::CustomClassHolder {
  explicit FunctionState(State value) : state(std::move(value)) {}
  State state;
};

template <typename State>
void remember(torch::autograd::AutogradContext& context, State state) {
  context.saved_data["state"] =
      at::IValue::make_capsule(c10::make_intrusive<FunctionState<State>>(std::move(state)));
}

// Of a backward. Collectives work on values: a graph through them would lack other ranks' parts.
template <typename State>
State remembered(torch::autograd::AutogradContext& context) {
  if (torch::autograd::GradMode::is_enabled()) {
    throw ConfigError({.what = "a layer split over tensor ranks cannot be differentiated twice",
                       .where = "backward with create_graph",
                       .fix = "run backward without create_graph, or use one tensor rank"});
  }
  const auto holder = context.saved_data.at("state").toCapsule();
  return static_cast<const FunctionState<State>&>(*holder).state;
}

}  // namespace capstan::tensor_parallel

#include "capstan/pipeline/split_backward.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

namespace capstan::pipeline {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;

// Every node that is reached from `roots`, each after those that it leads to.
std::vector<Node*> in_order(const edge_list& roots) {
  std::vector<Node*> order;
  std::unordered_set<Node*> seen;
  std::vector<std::pair<Node*, std::size_t>> open;  // with the edge to follow next
  const auto enter = [&](Node* node) {
    if (node != nullptr && seen.insert(node).second) open.emplace_back(node, 0);
  };
  for (const Edge& root : roots) {
    enter(root.function.get());
    while (!open.empty()) {
      auto& [node, next] = open.back();
      if (next < node->next_edges().size()) {
        enter(node->next_edges()[next++].function.get());
      } else {
        order.push_back(node);
        open.pop_back();
      }
    }
  }
  return order;
}

void add_once(edge_list& edges, const Edge& edge) {
  if (std::ranges::find(edges, edge) == edges.end()) edges.push_back(edge);
}

Tensors execute(const edge_list& roots, const Tensors& gradients, bool keep_graph,
                const edge_list& outputs) {
  return torch::autograd::Engine::get_default_engine().execute(
      roots, gradients, keep_graph, /*create_graph=*/false, /*accumulate_grad=*/outputs.empty(),
      outputs);
}

}  // namespace

std::optional<SplitBackward> SplitBackward::of(const Tensors& outputs, const Tensors& inputs) {
  SplitBackward split;
  std::unordered_set<Node*> to_inputs;  // these, and what leads to them
  for (const at::Tensor& input : inputs) {
    const bool wanted = input.defined() && input.requires_grad();
    split.inputs_.push_back(wanted ? torch::autograd::impl::gradient_edge(input) : Edge());
    if (wanted) to_inputs.insert(split.inputs_.back().function.get());
  }
  const std::unordered_set<Node*> ends = to_inputs;
  for (const at::Tensor& output : outputs) {
    split.outputs_.push_back(torch::autograd::impl::gradient_edge(output));
  }
  const std::vector<Node*> order = in_order(split.outputs_);
  const auto leads = [&to_inputs](const Edge& edge) {
    return to_inputs.contains(edge.function.get());
  };
  for (Node* const node : order) {
    if (std::ranges::any_of(node->next_edges(), leads)) to_inputs.insert(node);
  }
  if (!std::ranges::all_of(split.outputs_, leads)) return std::nullopt;

  for (auto at = order.rbegin(); at != order.rend(); ++at) {
    if (!to_inputs.contains(*at) || ends.contains(*at)) continue;
    Fork fork{.node = *at, .to_params = {}, .arrived = {}};
    for (const Edge& edge : (*at)->next_edges()) {
      if (edge.is_valid() && !leads(edge)) add_once(fork.to_params, edge);
    }
    if (fork.to_params.empty()) continue;
    for (Node* const node : in_order(fork.to_params)) {
      if (!split.beyond_.insert(node).second) return std::nullopt;
    }
    split.forks_.push_back(std::move(fork));
  }
  return split;
}

Tensors SplitBackward::inputs(const Tensors& gradients) {
  edge_list wanted;
  for (const Edge& input : inputs_) {
    if (input.is_valid()) wanted.push_back(input);
  }
  for (const Fork& fork : forks_) {
    for (std::uint32_t nr = 0; nr < fork.node->num_inputs(); ++nr) {
      wanted.emplace_back(fork.node->getptr(), nr);
    }
  }
  Tensors found = execute(outputs_, gradients, /*keep_graph=*/true, wanted);
  auto next = found.begin();
  Tensors result;
  for (const Edge& input : inputs_) {
    result.push_back(input.is_valid() ? std::move(*next++) : at::Tensor());
  }
  for (Fork& fork : forks_) {
    for (std::uint32_t nr = 0; nr < fork.node->num_inputs(); ++nr) {
      fork.arrived.push_back(std::move(*next++));
    }
  }
  return result;
}

void SplitBackward::weights() {
  edge_list roots;
  Tensors gradients;
  for (Fork& fork : forks_) {
    edge_list from;
    Tensors arrived;
    for (std::uint32_t nr = 0; nr < fork.arrived.size(); ++nr) {
      if (!fork.arrived[nr].defined()) continue;
      from.emplace_back(fork.node->getptr(), nr);
      arrived.push_back(std::move(fork.arrived[nr]));
    }
    fork.arrived.clear();
    if (from.empty()) continue;
    Tensors found = execute(from, arrived, /*keep_graph=*/false, fork.to_params);
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (!found[i].defined()) continue;
      roots.push_back(fork.to_params[i]);
      gradients.push_back(std::move(found[i]));
    }
  }
  forks_.clear();
  // All parameters in one pass, as in a whole backward.
  if (!roots.empty()) execute(roots, gradients, /*keep_graph=*/false, {});
  outputs_.clear();
}

}  // namespace capstan::pipeline

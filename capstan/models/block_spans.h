// Runs the blocks of a model in a row; some of their activations are computed again in backward.
#pragma once

#include <memory>
#include <vector>

#include "capstan/nn/unit.h"
#include "capstan/recompute/checkpoint.h"
#include "capstan/recompute/options.h"
#include "capstan/recompute/span_times.h"
#include "capstan/recompute/spans.h"

namespace capstan::models {

template <typename Block>
at::Tensor run_blocks(std::vector<nn::Unit<Block>>& blocks, at::Tensor x,
                      const recompute::Options& options,
                      const std::shared_ptr<recompute::SpanTimes>& times) {
  if (!options.enabled) {
    for (nn::Unit<Block>& block : blocks) x = block(x);
    return x;
  }
  const int count = static_cast<int>(blocks.size());
  for (const auto& span : recompute::spans_of(options, count)) {
    // Holders by value: the blocks must live until backward.
    const std::vector<nn::Unit<Block>> inside(blocks.begin() + span.begin,
                                              blocks.begin() + span.end);
    const auto run = [inside](at::Tensor y) {
      for (nn::Unit<Block> block : inside) y = block(y);
      return y;
    };
    x = recompute::checkpoint(run, x, options, times);
  }
  return x;
}

// One use of a unit for all `inputs`: function(module, input, index) of each.
template <typename Module, typename Function>
std::vector<at::Tensor> call_each(nn::Unit<Module>& unit, std::vector<at::Tensor> inputs,
                                  const Function& function) {
  using Impl = typename nn::Unit<Module>::Impl;
  const auto all = [&function](Impl& module, std::vector<at::Tensor> each) {
    for (std::size_t i = 0; i < each.size(); ++i) each[i] = function(module, each[i], i);
    return each;
  };
  return unit.call(all, std::move(inputs));
}

}  // namespace capstan::models

// Runs the blocks of a model in a row; some of their activations are computed again in backward,
// and some blocks may be left out.
#pragma once

#include <memory>
#include <vector>

#include <ATen/Functions.h>

#include "capstan/nn/unit.h"
#include "capstan/recompute/checkpoint.h"
#include "capstan/recompute/options.h"
#include "capstan/recompute/span_times.h"
#include "capstan/recompute/spans.h"

namespace capstan::models {

// x + scale f(x) of a block x + f(x); 0: it is not run, and its unit not gathered.
template <typename Block>
at::Tensor run_scaled(nn::Unit<Block>& block, const at::Tensor& x, double scale) {
  if (scale == 0) return x;
  const at::Tensor y = block(x);
  return scale == 1 ? y : at::lerp(x, y, scale);
}

// `scales`: one per block, or none, as of Model::scale_branches().
template <typename Block>
at::Tensor run_blocks(std::vector<nn::Unit<Block>>& blocks, at::Tensor x,
                      const recompute::Options& options,
                      const std::shared_ptr<recompute::SpanTimes>& times,
                      const std::vector<double>& scales) {
  const auto scale_of = [](const std::vector<double>& of, std::size_t block) {
    return of.empty() ? 1.0 : of.at(block);
  };
  if (!options.enabled) {
    for (std::size_t i = 0; i < blocks.size(); ++i)
      x = run_scaled(blocks[i], x, scale_of(scales, i));
    return x;
  }
  const int count = static_cast<int>(blocks.size());
  for (const auto& span : recompute::spans_of(options, count)) {
    // Holders by value: the blocks must live until backward.
    const std::vector<nn::Unit<Block>> inside(blocks.begin() + span.begin,
                                              blocks.begin() + span.end);
    const auto run = [inside, scales, scale_of, begin = span.begin](at::Tensor y) {
      for (std::size_t i = 0; i < inside.size(); ++i) {
        nn::Unit<Block> block = inside[i];
        y = run_scaled(block, y, scale_of(scales, static_cast<std::size_t>(begin) + i));
      }
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

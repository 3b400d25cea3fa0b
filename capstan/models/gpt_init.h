// How GPT-2's weights start.
#pragma once

#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "capstan/models/gpt_options.h"

namespace capstan::models {

// Of the normal distribution that a weight matrix starts from, as published with GPT-2: smaller
// where the result is added to the residual stream.
inline double start_deviation(std::string_view name, const GptOptions& options) {
  constexpr double kGptInitDeviation = 0.02;
  if (!name.ends_with("c_proj.weight")) return kGptInitDeviation;
  return kGptInitDeviation / std::sqrt(2.0 * static_cast<double>(options.layers));
}

struct DrawnWeight {
  std::string name;  // as in files
  std::vector<std::int64_t> shape;
};

// The weight matrices of the whole model in the order in which one generator draws them. Whoever
// has a part of the model draws all and keeps its own, so that everybody has the same weights.
inline std::vector<DrawnWeight> drawn_weights(const GptOptions& options) {
  const std::int64_t width = options.width;
  std::vector<DrawnWeight> weights = {{"transformer.wte.weight", {options.vocab, width}},
                                      {"transformer.wpe.weight", {options.context, width}}};
  for (std::int64_t i = 0; i < options.layers; ++i) {
    const std::string block = "transformer.h." + std::to_string(i);
    weights.push_back({block + ".attn.c_attn.weight", {width, 3 * width}});
    weights.push_back({block + ".attn.c_proj.weight", {width, width}});
    weights.push_back({block + ".mlp.c_fc.weight", {width, 4 * width}});
    weights.push_back({block + ".mlp.c_proj.weight", {4 * width, width}});
  }
  return weights;
}

}  // namespace capstan::models

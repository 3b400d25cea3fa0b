// How GPT-2's weights start.
#pragma once

#include <cmath>
#include <string_view>

#include "capstan/models/gpt_options.h"

namespace capstan::models {

// Of the normal distribution that a weight matrix starts from, as published with GPT-2: smaller
// where the result is added to the residual stream.
inline double start_deviation(std::string_view name, const GptOptions& options) {
  constexpr double kGptInitDeviation = 0.02;
  if (!name.ends_with("c_proj.weight")) return kGptInitDeviation;
  return kGptInitDeviation / std::sqrt(2.0 * static_cast<double>(options.layers));
}

}  // namespace capstan::models

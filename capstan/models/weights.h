// Weights of a model from tensors by the names of Hugging Face's files.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "capstan/models/model.h"

namespace capstan::models {

// Gives the tensor of that name, or nothing if the file has none.
using FindWeight = std::function<std::optional<at::Tensor>(const std::string& name)>;

// Copies every weight in. Names with and without the leading FileNames::root are accepted, as
// published files have either. Throws ConfigError that lists all missing and misshapen ones.
void load_weights(Model& model, const FindWeight& find);

}  // namespace capstan::models

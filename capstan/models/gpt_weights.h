// The weights of a Gpt as Hugging Face's GPT-2 files have them: same names, same shapes, without
// the rows that exist inside only.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "capstan/models/gpt.h"

namespace capstan::models {

struct NamedWeight {
  std::string name;   // "transformer.h.0.attn.c_attn.weight"
  at::Tensor weight;  // a view into the model's parameter
};

std::vector<NamedWeight> file_weights(GptImpl& model);

// Gives the tensor of that name, or nothing if the file has none.
using FindWeight = std::function<std::optional<at::Tensor>(const std::string& name)>;

// Copies every weight in. Names with and without the leading "transformer." are accepted, as
// published files have either. Throws ConfigError that lists all missing and misshapen ones.
void load_weights(GptImpl& model, const FindWeight& find);

}  // namespace capstan::models

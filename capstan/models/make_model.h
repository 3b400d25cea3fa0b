// From paper to parameters.
#pragma once

#include <memory>

#include "capstan/models/model.h"

namespace capstan::models {

// A blueprint of the registry.
std::shared_ptr<Model> make_model(const Blueprint& blueprint);

}  // namespace capstan::models

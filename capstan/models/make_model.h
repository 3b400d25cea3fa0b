// From paper to parameters.
#pragma once

#include <memory>

#include "capstan/models/model.h"

namespace capstan::models {

// A blueprint of the registry. With several tensor ranks this rank's part, which waits for
// Model::join().
std::shared_ptr<Model> make_model(const Blueprint& blueprint, tensor_parallel::Place place = {});

}  // namespace capstan::models

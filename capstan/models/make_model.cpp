#include "capstan/models/make_model.h"

#include "capstan/base/error.h"
#include "capstan/models/gpt.h"
#include "capstan/models/split_gpt.h"

namespace capstan::models {

std::shared_ptr<Model> make_model(const Blueprint& blueprint, tensor_parallel::Place place) {
  if (const auto* const gpt = dynamic_cast<const GptBlueprint*>(&blueprint)) {
    if (place.ranks == 1) return std::make_shared<GptImpl>(gpt->options());
    return std::make_shared<SplitGptImpl>(gpt->options(), TensorRanks{place});
  }
  throw InternalError({.what = "nobody makes a " + blueprint.title()});
}

}  // namespace capstan::models

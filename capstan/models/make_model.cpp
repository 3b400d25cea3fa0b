#include "capstan/models/make_model.h"

#include "capstan/base/error.h"
#include "capstan/models/gpt.h"

namespace capstan::models {

std::shared_ptr<Model> make_model(const Blueprint& blueprint) {
  if (const auto* const gpt = dynamic_cast<const GptBlueprint*>(&blueprint)) {
    return std::make_shared<GptImpl>(gpt->options());
  }
  throw InternalError({.what = "nobody makes a " + blueprint.title()});
}

}  // namespace capstan::models

#include "capstan/nn/unit_base.h"

#include <torch/nn/module.h>

#include "capstan/base/error.h"

namespace capstan::nn {

void UnitBase::set_observer(UnitObserver& observer) {
  if (observer_ != nullptr && observer_ != &observer) {
    throw ConfigError({.what = "the unit already belongs to an engine",
                       .where = "unit of type " + module().name(),
                       .fix = "give each engine a model of its own, or destroy the first engine"});
  }
  observer_ = &observer;
}

void UnitBase::clear_observer(const UnitObserver& observer) {
  if (observer_ == &observer) observer_ = nullptr;
}

}  // namespace capstan::nn

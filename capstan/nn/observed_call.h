// Calls a function of a unit and tells the unit's observer before and after.
#pragma once

#include <functional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "capstan/nn/unit_base.h"
#include "capstan/nn/visit_tensors.h"

namespace capstan::nn {

// Between before_forward and after_forward; an exception in between becomes abandon_forward.
class ObservedScope {
 public:
  ObservedScope(UnitObserver& observer, UnitBase& unit) : observer_(observer), unit_(unit) {}
  ObservedScope(const ObservedScope&) = delete;
  ObservedScope& operator=(const ObservedScope&) = delete;
  ~ObservedScope() {
    if (!finished_) observer_.abandon_forward(unit_);
  }

  void begin(const TensorPlaces& inputs) { observer_.before_forward(unit_, inputs.all()); }
  void finish(const TensorPlaces& outputs) {
    observer_.after_forward(unit_, outputs.all());
    finished_ = true;
  }

 private:
  UnitObserver& observer_;
  UnitBase& unit_;
  bool finished_ = false;
};

// An argument with tensors in it is held as a copy, so that the observer can replace them without
// touching the caller's; anything else is passed on as it came.
template <typename Argument>
using HeldArgument =
    std::conditional_t<TensorVisitable<Argument> &&
                           std::is_copy_constructible_v<std::remove_cvref_t<Argument>>,
                       std::remove_cvref_t<Argument>, Argument&&>;

template <typename Result>
inline constexpr bool kCannotHoldTensors =
    std::is_trivially_copyable_v<Result> || std::is_same_v<Result, std::string>;

template <typename Function, typename... Arguments>
auto call_and_report(ObservedScope& scope, Function&& function, Arguments&&... arguments) {
  using Result = std::invoke_result_t<Function, Arguments...>;
  TensorPlaces inputs;
  (visit_if_known(arguments, inputs), ...);
  scope.begin(inputs);
  TensorPlaces outputs;
  if constexpr (std::is_void_v<Result>) {
    std::invoke(function, std::forward<Arguments>(arguments)...);
    scope.finish(outputs);
  } else {
    static_assert(TensorVisitable<Result> || kCannotHoldTensors<std::remove_cvref_t<Result>>,
                  "the engine must see every tensor a unit returns: offer visit_tensors() for "
                  "the result type, see capstan/nn/visit_tensors.h");
    std::decay_t<Result> result = std::invoke(function, std::forward<Arguments>(arguments)...);
    visit_if_known(result, outputs);
    scope.finish(outputs);
    return result;
  }
}

// A function that wants a mutable reference cannot be given a copy; then the caller's own values
// are visited, and replaced, in place.
template <typename Function, typename... Arguments>
auto observed_call(UnitBase& unit, Function&& function, Arguments&&... arguments) {
  UnitObserver* const observer = unit.observer();
  if (observer == nullptr) return std::invoke(function, std::forward<Arguments>(arguments)...);
  ObservedScope scope(*observer, unit);
  if constexpr (std::is_invocable_v<Function, HeldArgument<Arguments>...>) {
    std::tuple<HeldArgument<Arguments>...> held(std::forward<Arguments>(arguments)...);
    const auto call = [&scope, &function](auto&&... value) {
      return call_and_report(scope, function, std::forward<decltype(value)>(value)...);
    };
    return std::apply(call, std::move(held));
  } else {
    return call_and_report(scope, function, std::forward<Arguments>(arguments)...);
  }
}

}  // namespace capstan::nn

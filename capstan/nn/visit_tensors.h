// Finds the tensors inside the arguments and results of a forward: nested tuples, vectors, maps,
// optionals, and any struct that offers visit_tensors() in its own namespace.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

namespace capstan::nn {

// Places of tensors, in the order they were visited. The visited values own the tensors.
class TensorPlaces {
 public:
  void add(at::Tensor& tensor) { places_.push_back(&tensor); }
  std::span<at::Tensor* const> all() const { return {places_.data(), places_.size()}; }

 private:
  c10::SmallVector<at::Tensor*, 8> places_;  // eight tensors without an allocation
};

// How to let a struct of your own be seen: in its namespace, write
//   void visit_tensors(MyOutput& value, capstan::nn::TensorPlaces& places) {
//     visit_tensors(value.hidden, places);
//   }
inline void visit_tensors(at::Tensor& tensor, TensorPlaces& places) { places.add(tensor); }

// True for types that visit_tensors() knows. The call is found by argument-dependent lookup
// (TensorPlaces brings this namespace in), so the order of declaration does not matter.
template <typename Value>
concept TensorVisitable = requires(std::remove_cvref_t<Value>& value, TensorPlaces& places) {
  visit_tensors(value, places);
};

// Visits what is known and passes over what is not (numbers, strings, a generator, …).
template <typename Value>
void visit_if_known(Value& value, TensorPlaces& places) {
  if constexpr (TensorVisitable<Value>) visit_tensors(value, places);
}

template <typename Value>
void visit_tensors(std::optional<Value>& value, TensorPlaces& places) {
  if (value.has_value()) visit_if_known(*value, places);
}

template <typename Value>
void visit_tensors(std::vector<Value>& values, TensorPlaces& places) {
  if constexpr (!std::is_arithmetic_v<Value>) {
    for (Value& value : values) visit_if_known(value, places);
  }
}

template <typename Value, std::size_t Size>
void visit_tensors(std::array<Value, Size>& values, TensorPlaces& places) {
  for (Value& value : values) visit_if_known(value, places);
}

template <typename First, typename Second>
void visit_tensors(std::pair<First, Second>& values, TensorPlaces& places) {
  visit_if_known(values.first, places);
  visit_if_known(values.second, places);
}

template <typename... Values>
void visit_tensors(std::tuple<Values...>& values, TensorPlaces& places) {
  std::apply([&places](auto&... value) { (visit_if_known(value, places), ...); }, values);
}

template <typename Key, typename Value>
void visit_tensors(std::map<Key, Value>& values, TensorPlaces& places) {
  for (auto& [key, value] : values) visit_if_known(value, places);
}

// In the order of the keys: hooks on these tensors run collectives, and every rank must issue
// them in the same order.
template <typename Value>
void visit_tensors(std::unordered_map<std::string, Value>& values, TensorPlaces& places) {
  std::map<std::string, Value*> sorted;
  for (auto& [key, value] : values) sorted.emplace(key, &value);
  for (auto& [key, value] : sorted) visit_if_known(*value, places);
}

}  // namespace capstan::nn

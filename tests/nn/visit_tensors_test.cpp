#include "capstan/nn/visit_tensors.h"

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

namespace user_code {

struct Output {
  at::Tensor hidden;
  std::optional<at::Tensor> cache;
  int layers = 0;
};

struct Opaque {
  int number = 0;
};

void visit_tensors(Output& value, capstan::nn::TensorPlaces& places) {
  visit_tensors(value.hidden, places);
  visit_tensors(value.cache, places);
}

}  // namespace user_code

namespace capstan::nn {
namespace {

std::size_t count(auto& value) {
  TensorPlaces places;
  visit_tensors(value, places);
  return places.all().size();
}

TEST(VisitTensors, FindsTensorsInNestedContainers) {
  std::tuple<at::Tensor, std::vector<std::pair<int, at::Tensor>>, std::string> value = {
      at::zeros({1}), {{1, at::zeros({2})}, {2, at::zeros({3})}}, "text"};
  EXPECT_EQ(count(value), 3U);
  std::map<std::string, std::optional<at::Tensor>> map = {{"a", std::nullopt},
                                                          {"b", at::zeros({1})}};
  EXPECT_EQ(count(map), 1U);
  std::array<at::Tensor, 2> array = {at::zeros({1}), at::Tensor()};
  EXPECT_EQ(count(array), 2U);
}

TEST(VisitTensors, FindsTensorsInStructsThatOfferIt) {
  std::vector<user_code::Output> value(2);
  value[0].cache = at::zeros({1});
  EXPECT_EQ(count(value), 3U);
}

TEST(VisitTensors, VisitsAnUnorderedMapInTheOrderOfItsKeys) {
  std::unordered_map<std::string, at::Tensor> map;
  for (int i = 0; i < 50; ++i) map.emplace(std::to_string(100 + i), at::zeros({i}));
  TensorPlaces places;
  visit_tensors(map, places);
  ASSERT_EQ(places.all().size(), 50U);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(places.all()[static_cast<std::size_t>(i)]->numel(), i);
}

TEST(VisitTensors, GivesPlacesThatCanBeReplaced) {
  std::vector<at::Tensor> value = {at::zeros({1}), at::zeros({2})};
  TensorPlaces places;
  visit_tensors(value, places);
  *places.all()[1] = at::zeros({7});
  EXPECT_EQ(value[1].numel(), 7);
}

TEST(VisitTensors, KnowsWhatItDoesNotKnow) {
  static_assert(TensorVisitable<const at::Tensor&>);
  static_assert(TensorVisitable<std::vector<user_code::Output>>);
  static_assert(!TensorVisitable<user_code::Opaque>);
  static_assert(!TensorVisitable<int>);
}

}  // namespace
}  // namespace capstan::nn

#include "capstan/pipeline/partition.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"

namespace capstan::pipeline {
namespace {

using ::testing::HasSubstr;
using Cuts = std::vector<std::int64_t>;

std::vector<Layer> layers_of(const std::vector<std::string>& types,
                             const std::vector<std::int64_t>& params = {}) {
  std::vector<Layer> layers(types.size());
  for (std::size_t i = 0; i < types.size(); ++i) layers[i].type = types[i];
  for (std::size_t i = 0; i < params.size(); ++i) layers[i].params = params[i];
  return layers;
}

Cuts cut(std::string_view method, const std::vector<Layer>& layers, int stages, int chunks = 1) {
  return cut_layers(method_named(method), layers, {.shape = {.stages = stages, .chunks = chunks}});
}

template <class Function>
std::string refusal(const Function& function) {
  try {
    function();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Partition, UniformCountsLayers) {
  EXPECT_EQ(cut("uniform", std::vector<Layer>(10), 4), (Cuts{0, 3, 6, 8, 10}));
  EXPECT_EQ(cut("uniform", std::vector<Layer>(7), 3), (Cuts{0, 3, 5, 7}));
  EXPECT_EQ(cut("Uniform", std::vector<Layer>(2), 4), (Cuts{0, 1, 2, 2, 2}));
  EXPECT_EQ(cut("uniform", std::vector<Layer>(8), 2, 2), (Cuts{0, 2, 4, 6, 8}));
}

TEST(Partition, ParametersBalancesThem) {
  std::vector<std::int64_t> params(27, 12596224);
  params[0] = params[26] = 52559872;
  params[25] = 0;
  EXPECT_EQ(cut("parameters", layers_of(std::vector<std::string>(27), params), 8),
            (Cuts{0, 1, 5, 9, 13, 17, 21, 26, 27}));
  EXPECT_EQ(cut("PARAMETERS", layers_of({"a", "b", "c", "d", "e", "f"}, {0, 1, 2, 3, 3, 3}), 2, 2),
            (Cuts{0, 3, 4, 5, 6}));
}

TEST(Partition, TypeCountsTheLayersThatMatch) {
  const std::vector<Layer> layers =
      layers_of({"Embedding", "Block", "Block", "Block", "Block", "Block", "Block", "Block",
                 "Block", "Norm", "ns::Head"});
  EXPECT_EQ(cut("type:block", layers, 4), (Cuts{0, 3, 5, 7, 11}));
  EXPECT_EQ(cut("TYPE:^bl.*k$", layers, 4), (Cuts{0, 3, 5, 7, 11}));
  EXPECT_EQ(cut("type:block", layers, 2, 2), (Cuts{0, 3, 5, 7, 11}));
  // A colon belongs to the expression.
  EXPECT_EQ(cut("type:ns::head|embedding", layers, 2), (Cuts{0, 10, 11}));
  const std::string none = refusal([&] { cut("type:attention", layers, 2); });
  EXPECT_THAT(none, HasSubstr("no layer has a type that matches \"attention\""));
  EXPECT_THAT(none, HasSubstr("Embedding, Block, Norm, ns::Head"));
  EXPECT_THAT(refusal([&] { cut("type:(", layers, 2); }), HasSubstr("not a regular expression"));
}

TEST(Partition, AMethodThatDoesNotExistIsNamed) {
  EXPECT_THAT(refusal([] { method_named("unifrom"); }), HasSubstr("did you mean \"uniform\"?"));
  EXPECT_THAT(refusal([] { method_named("fastest"); }),
              HasSubstr("choose one of: uniform, parameters, profile, type:REGEX"));
  EXPECT_THAT(refusal([] { method_named("type:"); }), HasSubstr("no partition method \"type:\""));
  EXPECT_EQ(method_named("type:A:b"), (Method{Method::Kind::type, "A:b"}));
}

}  // namespace
}  // namespace capstan::pipeline

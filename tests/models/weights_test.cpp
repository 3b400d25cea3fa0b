#include "capstan/models/weights.h"

#include <map>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/models/gpt.h"

namespace capstan::models {
namespace {

GptOptions small() {
  GptOptions options = gpt_by_name("gpt2-tiny");
  options.vocab = 300;
  return options;
}

std::map<std::string, at::Tensor> by_name(GptImpl& model) {
  std::map<std::string, at::Tensor> weights;
  for (const NamedWeight& item : model.file_weights()) weights[item.name] = item.weight.clone();
  return weights;
}

FindWeight find_in(const std::map<std::string, at::Tensor>& weights) {
  return [&weights](const std::string& name) -> std::optional<at::Tensor> {
    const auto found = weights.find(name);
    if (found == weights.end()) return std::nullopt;
    return found->second;
  };
}

TEST(GptWeights, HaveTheNamesAndShapesOfHuggingFace) {
  Gpt model(small());
  const auto weights = by_name(*model);
  EXPECT_EQ(weights.size(), 2U + 2U * 12U + 2U);
  EXPECT_EQ(weights.at("transformer.wte.weight").sizes(), (std::vector<std::int64_t>{300, 64}));
  EXPECT_EQ(weights.at("transformer.wpe.weight").sizes(), (std::vector<std::int64_t>{128, 64}));
  EXPECT_EQ(weights.at("transformer.h.1.attn.c_attn.weight").sizes(),
            (std::vector<std::int64_t>{64, 192}));
  EXPECT_EQ(weights.at("transformer.h.1.mlp.c_proj.weight").sizes(),
            (std::vector<std::int64_t>{256, 64}));
  EXPECT_TRUE(weights.contains("transformer.h.0.ln_2.bias"));
  EXPECT_TRUE(weights.contains("transformer.ln_f.weight"));
}

TEST(GptWeights, SumToTheCountedParameters) {
  Gpt model(small());
  std::int64_t sum = 0;
  for (const auto& [name, weight] : by_name(*model)) sum += weight.numel();
  EXPECT_EQ(sum, parameter_count(small()));
}

TEST(GptWeights, GoOutAndInAgainWithAndWithoutThePrefix) {
  GptOptions other_seed = small();
  other_seed.seed = 99;
  Gpt source(other_seed);
  source->eval();
  const at::Tensor ids = at::arange(10).unsqueeze(0);
  std::map<std::string, at::Tensor> full = by_name(*source);
  std::map<std::string, at::Tensor> bare;
  for (const auto& [name, weight] : full) bare[name.substr(12)] = weight;
  for (const auto& weights : {full, bare}) {
    Gpt target(small());
    target->eval();
    EXPECT_FALSE(at::equal(target->logits(ids), source->logits(ids)));
    load_weights(*target, find_in(weights));
    EXPECT_TRUE(at::equal(target->logits(ids), source->logits(ids)));
  }
}

TEST(GptWeights, ListsEverythingThatDoesNotFitAndChangesNothing) {
  Gpt model(small());
  std::map<std::string, at::Tensor> weights = by_name(*model);
  for (auto& [name, weight] : weights) weight.add_(1);
  weights.erase("transformer.ln_f.bias");
  weights["transformer.wte.weight"] = at::zeros({301, 64});
  const at::Tensor before = model->transformer->ln_f->weight.detach().clone();
  try {
    load_weights(*model, find_in(weights));
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.info().what, testing::HasSubstr("transformer.ln_f.bias is missing"));
    EXPECT_THAT(error.info().what, testing::HasSubstr("wte.weight has shape [301, 64]"));
  }
  EXPECT_TRUE(at::equal(model->transformer->ln_f->weight, before));
}

}  // namespace
}  // namespace capstan::models

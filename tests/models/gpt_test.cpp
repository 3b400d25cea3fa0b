#include "capstan/models/gpt.h"

#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "capstan/base/error.h"
#include "capstan/nn/unit_tree.h"

namespace capstan::models {
namespace {

GptOptions tiny() {
  GptOptions options = gpt_by_name("gpt2-tiny");
  options.vocab = 300;  // 84 rows exist inside only
  options.layers = 3;
  return options;
}

at::Tensor some_ids(std::int64_t tokens = 17) {
  return at::arange(2 * tokens).view({2, tokens}).remainder(300);
}

std::vector<at::Tensor> gradients(const recompute::Options& recompute) {
  GptOptions options = tiny();
  options.recompute = recompute;
  Gpt model(options);
  at::manual_seed(5);
  const at::Tensor loss = model(some_ids(), some_ids().roll(-1, 1));
  loss.backward();
  std::vector<at::Tensor> result = {loss.detach()};
  for (const at::Tensor& parameter : model->parameters()) result.push_back(parameter.grad());
  return result;
}

TEST(Gpt, StartsNearTheUniformLoss) {
  Gpt model(tiny());
  model->eval();
  const double loss = model(some_ids(), some_ids().roll(-1, 1)).item<double>();
  EXPECT_NEAR(loss, std::log(300.0), 0.2);
}

TEST(Gpt, LearnsARepeatedSequence) {
  GptOptions options = tiny();
  options.dropout = 0;
  at::set_num_threads(1);  // small products on a busy machine: threads would wait for each other
  Gpt model(options);
  double loss = 0;
  for (int step = 0; step < 40; ++step) {
    const at::Tensor value = model(some_ids(), some_ids().roll(-1, 1));
    value.backward();
    loss = value.item<double>();
    const torch::autograd::AutoGradMode no_grad(false);
    for (at::Tensor& parameter : model->parameters()) {
      parameter.sub_(parameter.grad(), 0.5);
      parameter.mutable_grad().reset();
    }
  }
  EXPECT_LT(loss, 1.0);
}

TEST(Gpt, StartsFromItsSeedAlone) {
  at::manual_seed(1);
  Gpt first(tiny());
  at::manual_seed(2);
  Gpt second(tiny());
  GptOptions other = tiny();
  other.seed = 77;
  Gpt third(other);
  const auto a = first->parameters();
  const auto b = second->parameters();
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i]));
  EXPECT_FALSE(at::equal(a[0], third->parameters()[0]));
}

TEST(Gpt, StartsWithGpt2sDeviations) {
  GptOptions options = tiny();
  options.width = 256;
  Gpt model(options);
  const auto parameters = model->named_parameters();
  const auto deviation = [&](const char* name) { return parameters[name].std().item<double>(); };
  EXPECT_NEAR(deviation("transformer.h.0.attn.c_attn.weight"), 0.02, 0.0005);
  EXPECT_NEAR(deviation("transformer.h.0.mlp.c_proj.weight"), 0.02 / std::sqrt(6.0), 0.0005);
  EXPECT_EQ(deviation("transformer.h.2.ln_1.weight"), 0.0);
}

TEST(Gpt, NeverChoosesOrTrainsARowThatExistsInsideOnly) {
  Gpt model(tiny());
  const at::Tensor logits = model->logits(some_ids());
  EXPECT_EQ(logits.size(2), 384);
  EXPECT_TRUE(at::isneginf(logits.narrow(2, 300, 84)).all().item<bool>());
  EXPECT_TRUE(at::isfinite(logits.narrow(2, 0, 300)).all().item<bool>());
  model(some_ids(), some_ids()).backward();
  const at::Tensor gradient = model->transformer->wte->weight.grad();
  EXPECT_TRUE(at::isfinite(gradient).all().item<bool>());
  EXPECT_EQ(gradient.narrow(0, 300, 84).abs().max().item<float>(), 0);
  EXPECT_EQ(model->transformer->wte->weight.narrow(0, 300, 84).abs().max().item<float>(), 0);
}

TEST(Gpt, GivesTheSameBitsWhenActivationsAreComputedAgain) {
  const auto kept = gradients({});
  for (const std::optional<int> spans : {std::optional<int>(), std::optional<int>(2)}) {
    const auto recomputed = gradients({.enabled = true, .checkpoint_count = spans});
    ASSERT_EQ(kept.size(), recomputed.size());
    for (std::size_t i = 0; i < kept.size(); ++i) {
      EXPECT_TRUE(at::equal(kept[i], recomputed[i])) << i;
    }
  }
}

TEST(Gpt, LeavesOutTargetsOfMinusHundred) {
  Gpt model(tiny());
  model->eval();
  const at::Tensor ids = some_ids();
  at::Tensor targets = ids.clone();
  targets.slice(1, 1).fill_(-100);
  const at::Tensor first_only =
      at::cross_entropy_loss(model->logits(ids).select(1, 0), ids.select(1, 0));
  EXPECT_TRUE(at::allclose(model(ids, targets), first_only, 1e-6, 1e-6));
}

TEST(Gpt, IsCausal) {
  Gpt model(tiny());
  model->eval();
  at::Tensor ids = some_ids();
  const at::Tensor before = model->logits(ids).clone();
  ids.select(1, 10).fill_(7);
  const at::Tensor after = model->logits(ids);
  EXPECT_TRUE(at::equal(before.narrow(1, 0, 10), after.narrow(1, 0, 10)));
  EXPECT_FALSE(at::equal(before.select(1, 10), after.select(1, 10)));
}

TEST(Gpt, ComputesItsLossInFp32WhenTheModelIsBf16) {
  Gpt model(tiny());
  model->eval();
  const double exact = model(some_ids(), some_ids()).item<double>();
  model->to(at::kBFloat16);
  const at::Tensor loss = model(some_ids(), some_ids());
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_NEAR(loss.item<double>(), exact, 0.05);
}

TEST(Gpt, IsMadeOfUnitsOnly) {
  Gpt model(tiny());
  std::vector<std::string> names;
  std::int64_t inside = 0;
  for (const nn::NamedUnit& found : nn::find_units(*model)) {
    names.push_back(found.name);
    for (const at::Tensor& parameter : found.unit->module().parameters())
      inside += parameter.numel();
  }
  EXPECT_THAT(names,
              testing::ElementsAre("transformer.wte", "transformer.wpe", "transformer.h.0",
                                   "transformer.h.1", "transformer.h.2", "transformer.ln_f"));
  std::int64_t all = 0;
  for (const at::Tensor& parameter : model->parameters()) all += parameter.numel();
  EXPECT_EQ(inside, all);
}

TEST(Gpt, ClonesIntoAModelOfItsOwn) {
  Gpt model(tiny());
  model->eval();
  const auto copy = std::dynamic_pointer_cast<GptImpl>(model->clone());
  EXPECT_TRUE(at::equal(copy->logits(some_ids()), model->logits(some_ids())));
  {
    const torch::autograd::AutoGradMode no_grad(false);
    for (at::Tensor& parameter : copy->parameters()) parameter.mul_(1.5);
  }
  EXPECT_FALSE(at::equal(copy->logits(some_ids()), model->logits(some_ids())));
  EXPECT_EQ(nn::find_units(*copy)[2].unit,
            static_cast<nn::UnitBase*>(copy->transformer->h->blocks[0].get()));
}

TEST(Gpt, RefusesASequenceBeyondItsContext) {
  Gpt model(tiny());
  EXPECT_THROW(model->logits(at::zeros({1, 129}, at::kLong)), ConfigError);
}

TEST(Gpt, NextLogitsAreThoseOfTheWholeSequenceWhateverWasRemembered) {
  const torch::autograd::AutoGradMode no_grad(false);
  Gpt model(tiny());
  model->eval();
  const at::Tensor ids = some_ids();
  const at::Tensor expected = model->logits(ids).select(1, 16).narrow(1, 0, 300);
  std::vector<Sequences> together(2);
  for (const auto& [begin, count] : {std::pair{0, 9}, {9, 1}, {10, 6}, {16, 1}}) {
    together[0].ids = ids.narrow(1, begin, count);
    together[1].ids = ids.narrow(1, 0, begin + count);
    together[1].seen.clear();
    const std::vector<at::Tensor> logits = model->next_logits(together);
    // Same sums in another order: some units in the last place of the largest.
    EXPECT_TRUE(at::allclose(logits[0], logits[1], 1e-5, 1e-5)) << "from token " << begin;
    if (begin == 16) {
      EXPECT_TRUE(at::allclose(logits[0], expected, 1e-5, 1e-5));
    }
  }
  EXPECT_EQ(together[0].seen_tokens(), 17);
  EXPECT_TRUE(model->next_logits({}).empty());
}

TEST(Gpt, WeightsThatAreLoadedLaterTakeNoMemory) {
  GptOptions options = tiny();
  options.weights_loaded_later = true;
  Gpt model(options);
  std::size_t bytes = 0;
  for (const at::Tensor& parameter : model->parameters()) bytes += parameter.storage().nbytes();
  const std::size_t vectors = 4 * (options.layers * 13 + 2) * options.width;  // norms and biases
  EXPECT_LE(bytes, vectors + 4 * model->parameters().size());
}

}  // namespace
}  // namespace capstan::models

// The split model against the whole one.
#include "capstan/models/split_gpt.h"

#include <map>
#include <mutex>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "capstan/base/error.h"
#include "capstan/models/gpt.h"
#include "capstan/models/weights.h"
#include "capstan/nn/unit_tree.h"
#include "capstan/tensor_parallel/take.h"
#include "tests/support/run_ranks.h"

namespace capstan::models {
namespace {

using tensor_parallel::WeightCut;
using testing::HasSubstr;

// 84 rows of the vocabulary exist inside only; 3 divides neither its rows nor the MLP's width.
GptOptions split_tiny() {
  GptOptions options = gpt_by_name("gpt2-tiny");
  options.vocab = 300;
  options.layers = 2;
  options.width = 48;
  options.heads = 4;
  options.dropout = 0;
  return options;
}

at::Tensor split_ids() { return at::arange(24).view({2, 12}).mul(31).remainder(300); }

at::Tensor split_targets() {
  at::Tensor targets = split_ids().roll(-1, 1);
  targets.slice(1, 10).fill_(-100);
  return targets;
}

// What a rank has of a whole tensor of that file.
at::Tensor part_of_file(const NamedWeight& own, const at::Tensor& whole) {
  if (!own.cut) return whole;
  const WeightCut cut = first_rows(*own.cut, own.file_rows);
  return own.weight.numel() == 0 ? own.weight : take(whole, cut);
}

std::map<std::string, at::Tensor> by_name(const std::vector<NamedWeight>& weights) {
  std::map<std::string, at::Tensor> result;
  for (const NamedWeight& each : weights) result[each.name] = each.weight;
  return result;
}

// Gradients of a whole model, as its files would have them.
struct WholeRun {
  WholeRun() {
    Gpt model(split_tiny());
    const at::Tensor result = model(split_ids(), split_targets());
    result.backward();
    loss = result.item<double>();
    for (const auto& item : model->named_parameters()) gradients[item.key()] = item.value().grad();
    gradients["transformer.wte.weight"] = gradients["transformer.wte.weight"].narrow(0, 0, 300);
    weights = by_name(model->file_weights());
  }
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;
  std::map<std::string, at::Tensor> weights;
};

SplitGpt make_split(comm::Group& group, const GptOptions& options, bool sequence_parts = false) {
  SplitGpt model(options,
                 TensorRanks{{group.rank(), group.size()}, sequence_parts, /*group=*/nullptr});
  model->join(group);
  return model;
}

// The loss, then the gradients.
std::vector<at::Tensor> run_split(SplitGpt& model) {
  const at::Tensor loss = model(split_ids(), split_targets());
  loss.backward();
  std::vector<at::Tensor> results = {loss.detach()};
  for (const at::Tensor& each : model->parameters()) results.push_back(each.grad());
  return results;
}

void expect_gradients(SplitGpt& model, const WholeRun& whole) {
  const auto parameters = model->named_parameters();
  for (const NamedWeight& own : model->file_weights()) {
    at::Tensor mine = parameters[own.parameter()].grad();
    ASSERT_TRUE(mine.defined()) << own.parameter();
    const at::Tensor expected = part_of_file(own, whole.gradients.at(own.name));
    // Rows that exist inside only have no gradient.
    if (mine.size(0) > expected.size(0)) {
      EXPECT_TRUE(mine.slice(0, expected.size(0)).eq(0).all().item<bool>());
      mine = mine.slice(0, 0, expected.size(0));
    }
    if (mine.numel() == 0) continue;
    const double largest = std::max(1e-3, expected.abs().max().item<double>());
    EXPECT_LE((mine - expected).abs().max().item<double>(), 1e-5 * largest) << own.parameter();
  }
}

TEST(SplitGpt, HasTheLossAndGradientsOfTheWholeModel) {
  const WholeRun whole;
  for (const bool sequence_parts : {false, true}) {
    for (const int ranks : {1, 2, 3, 4}) {
      run_ranks(ranks, [&](comm::Group& group) {
        SplitGpt model = make_split(group, split_tiny(), sequence_parts);
        EXPECT_NEAR(run_split(model)[0].item<double>(), whole.loss, 1e-5);
        expect_gradients(model, whole);
      });
    }
  }
}

TEST(SplitGpt, GivesTheSameBitsWhenActivationsAreComputedAgainAndInEveryRun) {
  const auto run = [](const recompute::Options& recompute) {
    std::vector<std::vector<at::Tensor>> results(2);
    run_ranks(2, [&](comm::Group& group) {
      GptOptions options = split_tiny();
      options.recompute = recompute;
      SplitGpt model = make_split(group, options);
      results[static_cast<std::size_t>(group.rank())] = run_split(model);
    });
    return results;
  };
  const auto kept = run({});
  for (const recompute::Options& recompute : {recompute::Options{}, {.enabled = true}}) {
    const auto again = run(recompute);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      for (std::size_t i = 0; i < kept[rank].size(); ++i) {
        EXPECT_TRUE(at::equal(again[rank][i], kept[rank][i])) << i;
      }
    }
  }
}

TEST(SplitGpt, StartsWithPartsOfTheWholeModelsWeights) {
  const WholeRun whole;
  for (const int ranks : {1, 2, 3, 4}) {
    std::int64_t elems = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      SplitGpt model(split_tiny(), TensorRanks{{rank, ranks}});
      for (const NamedWeight& own : model->file_weights()) {
        EXPECT_TRUE(at::equal(own.weight, part_of_file(own, whole.weights.at(own.name))))
            << own.parameter();
        if (own.cut || rank == 0) elems += own.weight.numel();
      }
    }
    EXPECT_EQ(elems, parameter_count(split_tiny()));
  }
}

TEST(SplitGpt, LoadsItsPartsOfAFile) {
  GptOptions other = split_tiny();
  other.seed = 99;
  Gpt donor(other);
  const auto file = by_name(donor->file_weights());
  const FindWeight find = [&](const std::string& name) -> std::optional<at::Tensor> {
    const auto found = file.find(name);
    return found == file.end() ? std::nullopt : std::optional(found->second);
  };
  for (int rank = 0; rank < 3; ++rank) {
    SplitGpt model(split_tiny(), TensorRanks{{rank, 3}});
    load_weights(*model, find);
    for (const NamedWeight& own : model->file_weights()) {
      EXPECT_TRUE(at::equal(own.weight, part_of_file(own, file.at(own.name)))) << own.parameter();
    }
  }
  GptOptions narrow = split_tiny();
  narrow.width = 32;
  SplitGpt model(narrow, TensorRanks{{0, 2}});
  EXPECT_THROW(load_weights(*model, find), ConfigError);
}

TEST(SplitGpt, GivesTheNextLogitsOfTheWholeModel) {
  const torch::autograd::AutoGradMode no_grad(false);
  Gpt whole(split_tiny());
  whole->eval();
  const at::Tensor ids = split_ids();
  const at::Tensor expected = whole->logits(ids).select(1, 11).narrow(1, 0, 300);
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [&](comm::Group& group) {
      const torch::autograd::AutoGradMode no_grad_here(false);
      SplitGpt model = make_split(group, split_tiny());
      model->eval();
      std::vector<Sequences> all(1);
      at::Tensor logits;
      for (const auto& [begin, count] : {std::pair{0, 7}, {7, 4}, {11, 1}}) {
        all[0].ids = ids.narrow(1, begin, count);
        logits = model->next_logits(all)[0];
      }
      EXPECT_TRUE(at::allclose(logits, expected, 1e-5, 1e-5));
    });
  }
}

TEST(SplitGpt, IsMadeOfTheUnitsOfTheWholeModel) {
  Gpt whole(split_tiny());
  SplitGpt split(split_tiny(), TensorRanks{{0, 2}});
  std::vector<std::string> names;
  for (const nn::NamedUnit& unit : nn::find_units(*whole)) names.push_back(unit.name);
  std::vector<std::string> mine;
  for (const nn::NamedUnit& unit : nn::find_units(*split)) mine.push_back(unit.name);
  EXPECT_EQ(mine, names);
}

TEST(SplitGpt, SaysWhatCannotBe) {
  const auto message = [](const std::function<void()>& act) {
    try {
      act();
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(message([] {
                SplitGpt model(split_tiny(), TensorRanks{{0, 2}});
                model(split_ids(), split_targets());
              }),
              HasSubstr("call join()"));
  EXPECT_THAT(message([] { SplitGpt(split_tiny(), TensorRanks{{0, 5}}); }),
              HasSubstr("4 attention heads cannot be shared by 5 tensor ranks"));
  run_ranks(2, [&](comm::Group& group) {
    SplitGpt other(split_tiny(), TensorRanks{{0, 4}});
    EXPECT_THAT(message([&] { other->join(group); }), HasSubstr("joins another group"));
    SplitGpt parts = make_split(group, split_tiny(), /*sequence_parts=*/true);
    const at::Tensor odd = split_ids().narrow(1, 0, 11);
    EXPECT_THAT(message([&] { parts(odd, odd); }),
                HasSubstr("11 tokens cannot be shared evenly by 2 tensor ranks"));
    std::vector<Sequences> none;
    EXPECT_THAT(message([&] { parts->next_logits(none); }), HasSubstr("cannot generate"));
    EXPECT_THAT(
        message([&] { parts(at::zeros({1, 130}, at::kLong), at::zeros({1, 130}, at::kLong)); }),
        HasSubstr("130 tokens"));
  });
}

TEST(SplitGpt, ClonesIntoAModelOfItsOwn) {
  run_ranks(2, [](comm::Group& group) {
    SplitGpt model = make_split(group, split_tiny());
    const auto copy = std::dynamic_pointer_cast<SplitGptImpl>(model->clone());
    EXPECT_TRUE(at::equal(copy->forward(split_ids(), split_targets()),
                          model(split_ids(), split_targets())));
  });
}

}  // namespace
}  // namespace capstan::models

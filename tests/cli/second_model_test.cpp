// A model that is no GPT-2 and that the library does not know goes through what `capstan train` and
// `capstan generate` do with any: it trains sharded, is saved, found again, resumed, and generates.
#include <fstream>
#include <sstream>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>

#include "capstan/base/error.h"
#include "capstan/cli/generate/decode.h"
#include "capstan/cli/train/checkpoints.h"
#include "capstan/models/model.h"
#include "capstan/nn/unit.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temp_folder.h"

namespace capstan::cli {
namespace {

using testing::HasSubstr;

class BigramBlueprint final : public models::Blueprint {
 public:
  explicit BigramBlueprint(std::int64_t vocab, bool later = false) : vocab_(vocab), later_(later) {}

  std::string title() const override { return "bigram"; }
  models::Sizes sizes() const override { return {vocab_, 1, vocab_, 0, 1}; }
  bool weights_loaded_later() const override { return later_; }
  std::shared_ptr<const Blueprint> with(const models::Changes& changes) const override {
    return std::make_shared<BigramBlueprint>(changes.vocab.value_or(vocab_),
                                             changes.weights_loaded_later.value_or(later_));
  }
  std::int64_t parameter_count() const override { return vocab_ * vocab_; }
  double flops_per_token(std::int64_t) const override { return 0; }
  models::FileNames file_names() const override { return {.root = "model.", .blocks = "x."}; }
  std::string config_json(std::int64_t) const override {
    return "{\"model_type\": \"bigram\", \"words\": " + std::to_string(vocab_) + "}\n";
  }
  std::vector<models::ChosenSize> chosen_sizes() const override {
    return {{"words", "--tokenizer", vocab_}};
  }
  std::vector<models::WeightSize> weight_sizes() const override {
    return {{"words", vocab_, "weight", 0}};
  }

 private:
  std::int64_t vocab_;
  bool later_;
};

class TableImpl : public torch::nn::Cloneable<TableImpl> {
 public:
  explicit TableImpl(std::int64_t vocab) : vocab_(vocab) { reset(); }
  void reset() override { weight = register_parameter("weight", at::zeros({vocab_, vocab_})); }
  at::Tensor forward(const at::Tensor& ids) { return at::embedding(weight, ids); }

  at::Tensor weight;

 private:
  std::int64_t vocab_;
};
TORCH_MODULE(Table);

class BigramImpl : public torch::nn::Cloneable<BigramImpl>, public models::Model {
 public:
  explicit BigramImpl(const BigramBlueprint& blueprint) : blueprint_(blueprint) { reset(); }
  void reset() override {
    table = register_module("model", nn::Unit<Table>(blueprint_.sizes().vocab));
  }

  const models::Blueprint& blueprint() const override { return blueprint_; }
  torch::nn::Module& module() override { return *this; }
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& targets) override {
    return at::nll_loss(at::log_softmax(table(ids).flatten(0, 1), 1), targets.flatten());
  }
  // Only the last token counts: nothing is remembered.
  std::vector<at::Tensor> next_logits(std::span<models::Sequences> all) override {
    std::vector<at::Tensor> logits;
    for (const models::Sequences& each : all) {
      logits.push_back(table(each.ids.select(1, each.ids.size(1) - 1)));
    }
    return logits;
  }
  std::vector<models::NamedWeight> file_weights() override {
    std::vector<models::NamedWeight> weights;
    for (const auto& item : named_parameters()) weights.push_back({item.key(), item.value()});
    return weights;
  }

  nn::Unit<Table> table{nullptr};

 private:
  BigramBlueprint blueprint_;
};

struct Trial {
  Trial(comm::Group& group, const BigramBlueprint& blueprint)
      : model(std::make_shared<BigramImpl>(blueprint)),
        engine(models::module_of(model), options(),
               {.group = &group, .extras = train::file_names(*model)}),
        sampler(100, {group.rank(), group.size()}, {}) {}

  static engine::Options options() {
    engine::Options options;
    options.optimizer = optim::Options{.kind = optim::Kind::adamw, .hyper = {.lr = 0.5}};
    options.shard.stage = 3;
    options.shard.persistence_threshold_elems = 0;
    return options;
  }

  // The word after each is the next one.
  double step() {
    const at::Tensor ids = at::arange(10).unsqueeze(0);
    const at::Tensor loss = model->forward(ids, (ids + 1).remainder(10));
    engine.backward(loss);
    engine.step();
    return loss.item<double>();
  }

  std::shared_ptr<models::Model> model;
  Engine engine;
  data::Sampler sampler;
};

std::string file_text(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(SecondModel, TrainsIsSavedResumesAndGenerates) {
  const test::TempFolder folder;
  run_ranks(2, [&](comm::Group& group) {
    const BigramBlueprint blueprint(10);
    Trial first(group, blueprint);
    const double before = first.step();
    first.step();
    const engine::Saved saved = train::save(first.engine, first.model->blueprint(), first.sampler,
                                            {.folder = folder.path().string(), .max_steps = 5});
    EXPECT_EQ(file_text(saved.folder / "config.json"), blueprint.config_json(0));
    const double after = first.step();
    EXPECT_LT(after, before);

    const std::string where = folder.path().string();
    ASSERT_TRUE(train::can_resume(group, c10::kCPU, blueprint, where));
    Trial second(group, BigramBlueprint(10, /*later=*/true));
    ASSERT_TRUE(train::resume(second.engine, second.model->blueprint(), second.sampler, where));
    EXPECT_EQ(second.step(), after);

    second.step();
    const std::unique_ptr<generate::Search> search =
        generate::make_search({3}, {.max_new_tokens = 4});
    generate::run_searches(
        {&search, 1},
        [&](std::span<models::Sequences> all) { return second.model->next_logits(all); },
        [](bool mine) { return mine; }, {.context = 8});
    EXPECT_THAT(search->best(), testing::ElementsAre(3, 4, 5, 6, 7));
  });
}

TEST(SecondModel, IsToldFromOneOfAnotherSizeByItsOwnKeys) {
  const test::TempFolder folder;
  run_ranks(1, [&](comm::Group& group) {
    const std::string where = folder.path().string();
    Trial run(group, BigramBlueprint(10));
    run.step();
    train::save(run.engine, run.model->blueprint(), run.sampler, {.folder = where});
    try {
      train::can_resume(group, c10::kCPU, BigramBlueprint(11), where);
      FAIL() << "another model resumes";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("words 10 there, 11 here (--tokenizer)"));
    }
  });
}

}  // namespace
}  // namespace capstan::cli

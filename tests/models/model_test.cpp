#include "capstan/models/model.h"

#include <fstream>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/models/gpt.h"
#include "capstan/models/make_model.h"
#include "capstan/models/registry.h"
#include "tests/support/temp_folder.h"

namespace capstan::models {
namespace {

using testing::HasSubstr;

std::shared_ptr<const Blueprint> tiny_paper() {
  return blueprint_by_name("gpt2-tiny")->with({.vocab = 300, .layers = 3, .dropout = 0.0});
}

template <typename Body>
std::string refusal(const Body& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Model, OfTheRegistryIsTheModelItself) {
  GptOptions options = gpt_by_name("gpt2-tiny");
  options.vocab = 300;
  options.layers = 3;
  options.dropout = 0;
  Gpt plain(options);
  const std::shared_ptr<Model> model = make_model(*tiny_paper());
  const at::Tensor ids = at::arange(34).view({2, 17});
  const at::Tensor loss = model->forward(ids, ids.roll(-1, 1));
  EXPECT_TRUE(at::equal(loss, plain(ids, ids.roll(-1, 1))));
  loss.backward();
  plain(ids, ids.roll(-1, 1)).backward();
  const auto ours = module_of(model)->parameters();
  const auto theirs = plain->parameters();
  ASSERT_EQ(ours.size(), theirs.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(at::equal(ours[i].grad(), theirs[i].grad()));
  }
  std::vector<Sequences> all = {{.ids = ids, .seen = {}}};
  EXPECT_EQ(model->next_logits(all).front().sizes(), (std::vector<std::int64_t>{2, 300}));
  EXPECT_EQ(all.front().seen_tokens(), 17);
}

TEST(Model, FilesNameItsBlocksAndHoldWhatIsCounted) {
  const std::shared_ptr<Model> model = make_model(*tiny_paper());
  const FileNames names = model->blueprint().file_names();
  const auto modules = model->module().named_modules();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(modules.contains(names.block(i))) << names.block(i);
  EXPECT_FALSE(modules.contains(names.block(3)));
  std::int64_t elems = 0;
  for (const NamedWeight& each : model->file_weights()) {
    elems += each.weight.numel();
    EXPECT_TRUE(each.name.starts_with(names.root));
  }
  EXPECT_EQ(elems, model->blueprint().parameter_count());
  for (const auto& [second, first] : names.tied) {
    EXPECT_TRUE(model->module().named_parameters().contains(first)) << second;
  }
}

TEST(Blueprint, IsTheSameAgainFromItsConfigJson) {
  const test::TempFolder folder;
  std::ofstream(folder / "config.json") << tiny_paper()->config_json(7);
  const ConfigFile config(folder / "config.json");
  const std::shared_ptr<const Blueprint> read = read_blueprint(config);
  EXPECT_EQ(read->parameter_count(), tiny_paper()->parameter_count());
  EXPECT_EQ(read->sizes().heads, tiny_paper()->sizes().heads);
  EXPECT_EQ(read->config_json(7), tiny_paper()->config_json(7));
  EXPECT_TRUE(read->weights_loaded_later());
  for (const ChosenSize& size : read->chosen_sizes()) {
    EXPECT_EQ(config.size(size.key.c_str()), size.value);
  }
  for (const WeightSize& size : read->weight_sizes()) {
    EXPECT_EQ(config.size(size.key.c_str()), size.value);
  }
}

TEST(Blueprint, RefusesWhatNoModelCanBe) {
  EXPECT_THAT(refusal([] { tiny_paper()->with({.heads = 7}); }),
              HasSubstr("not a multiple of 7 heads"));
  EXPECT_THAT(refusal([] { blueprint_by_name("gpt2-larg"); }),
              HasSubstr("did you mean gpt2-large? Known: gpt2-tiny, gpt2-nano"));
  const test::TempFolder folder;
  std::ofstream(folder / "config.json") << R"({"model_type": "llama"})";
  EXPECT_THAT(refusal([&] { read_blueprint(ConfigFile(folder / "config.json")); }),
              HasSubstr(R"(this is not a GPT-2 ("model_type": "gpt2"))"));
}

TEST(Blueprint, ChangesOnlyWhatIsGiven) {
  const auto changed = tiny_paper()->with({.context = 32, .weights_loaded_later = true});
  EXPECT_EQ(changed->sizes().context, 32);
  EXPECT_EQ(changed->sizes().vocab, 300);
  EXPECT_TRUE(changed->weights_loaded_later());
  EXPECT_FALSE(tiny_paper()->weights_loaded_later());
}

}  // namespace
}  // namespace capstan::models

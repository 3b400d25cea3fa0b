#include "capstan/shard/choose_units.h"

#include <functional>
#include <string>

#include <gmock/gmock.h>

#include "capstan/base/error.h"
#include "capstan/shard/module_tree.h"

namespace capstan::shard {
namespace {

using testing::ElementsAre;

std::vector<UnitCandidate> candidates() {
  return {{"wte", "torch::nn::EmbeddingImpl", 1000},
          {"h.0", "capstan::models::BlockImpl", 100},
          {"h.0.moe", "my.MoE", 60},
          {"h.0.moe.expert", "my.Expert", 30},
          {"h.01", "capstan::models::BlockImpl", 100}};
}

TEST(ChooseUnits, TakesAllWhereNothingIsSaid) {
  EXPECT_THAT(choose_units(candidates(), {}), ElementsAre(true, true, true, true, true));
}

TEST(ChooseUnits, TakesTheNamedOnesOnly) {
  EXPECT_THAT(choose_units(candidates(), {.unit_names = {"h.0"}}),
              ElementsAre(false, true, false, false, false));
  EXPECT_THROW(choose_units(candidates(), {.unit_names = {"h.7"}}), ConfigError);
}

// Where the error says that the mistake is.
std::string place_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const ConfigError& error) {
    return error.info().where;
  }
  return "no error";
}

TEST(ChooseUnits, NamesTheOptionAsTheUserKnowsIt) {
  const auto where = [](const Options& options) {
    return place_of([&] { (void)choose_units(candidates(), options); });
  };
  EXPECT_EQ(where({.unit_names = {"h.7"}}), "shard.unit_names");
  EXPECT_EQ(where({.leaf_modules = {.names = {"h.7"}}}), "shard.leaf_modules.names");
  EXPECT_EQ(where({.unit_names = {"h.7"}, .names = {{{"shard.unit_names", "my.units"}}}}),
            "my.units");
}

TEST(ChooseUnits, NamesTheSameOptionForATreeOfModules) {
  const std::vector<ModuleNode> tree = {{.name = "", .class_name = "Model"},
                                        {.name = "h", .class_name = "Block", .parent = 0}};
  const auto where = [&](const Options& options) {
    return place_of([&] { (void)find_boundaries(tree, {}, options); });
  };
  EXPECT_EQ(where({.unit_names = {"h.7"}}), "shard.unit_names");
  EXPECT_EQ(where({.leaf_modules = {.names = {"h.7"}}}), "shard.leaf_modules.names");
  EXPECT_EQ(where({.unit_names = {"h"}}), "no error");
}

TEST(ChooseUnits, ALeafTakesInWhatIsBelowIt) {
  const auto without_expert = ElementsAre(true, true, true, false, true);
  EXPECT_THAT(choose_units(candidates(), {.leaf_modules = {.names = {"h.0.moe"}}}), without_expert);
  EXPECT_THAT(choose_units(candidates(), {.leaf_modules = {.classes = {"MoE"}}}), without_expert);
  EXPECT_THAT(choose_units(candidates(), {.leaf_modules = {.name_suffixes = {"moe"}}}),
              without_expert);
  EXPECT_THAT(choose_units(candidates(), {.leaf_modules = {.classes = {"Block"}}}),
              ElementsAre(true, true, false, false, true));
  EXPECT_THAT(choose_units(candidates(), {.unit_granularity_elems = 60}), without_expert);
}

}  // namespace
}  // namespace capstan::shard

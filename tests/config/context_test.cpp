// What a caller adds to a file: classes of its own, values that it decides, which door it is.
#include "capstan/config/context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/config/docs.h"
#include "capstan/config/foreign_file.h"
#include "capstan/config/shared_values.h"
#include "support.h"

namespace capstan::config {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Context at_door(Door door) {
  Context context;
  context.door = door;
  return context;
}

Context with_classes() {
  Context context;
  context.other_types["optimizer"] = {.in_words = "a class of torch.optim",
                                      .classes = {{"NAdam", {.params = {"lr", "momentum_decay"}}},
                                                  {"AdamW", {.params = {"torchs_own"}}},
                                                  {"RAdam", {.params = {"lr"}}}}};
  context.other_types["scheduler"] = {
      .in_words = "a class of torch.optim.lr_scheduler",
      .classes = {{"StepLR", {.params = {"step_size", "gamma"}, .required = {"step_size"}}}}};
  return context;
}

TEST(OtherTypes, AreTakenByNameWithTheirOwnParameters) {
  const char* const text = R"({"optimizer": {"params": {"momentum_decay": "4e-3", "lr": "auto"},
      "type": "nadam"}, "scheduler": {"type": "StepLR", "params": {"step_size": 3}}})";
  const Resolved resolved = resolve_text(text, with_classes());
  EXPECT_EQ(resolved.table.text("optimizer.type"), "NAdam");
  EXPECT_EQ(resolved.table.number("optimizer.params.momentum_decay"), 0.004);
  EXPECT_TRUE(resolved.table.is_null("optimizer.params.lr"));
  EXPECT_EQ(resolved.table.integer("scheduler.params.step_size"), 3);
  EXPECT_FALSE(resolved.engine.optimizer.has_value());  // the caller makes it
  // What the schema has comes first.
  EXPECT_TRUE(
      resolve_text(R"({"optimizer": {"type": "AdamW", "params": {"lr": 1}}})", with_classes())
          .engine.optimizer.has_value());
  EXPECT_THAT(problems_of(text), HasSubstr("Invalid type: \"nadam\""));  // others cannot
}

TEST(OtherTypes, MistakesInThemAreToldLikeAnyOther) {
  const std::string problems = problems_of(
      R"({"optimizer": {"type": "NAdam", "params": {"momentum_dcay": 1}},
          "scheduler": {"type": "StepLR", "params": {"gamma": 0.5}}})",
      with_classes());
  EXPECT_THAT(problems, AllOf(HasSubstr("unknown key \"momentum_dcay\""),
                              HasSubstr("did you mean \"momentum_decay\"?"),
                              HasSubstr("\"step_size\" is missing")));
  const std::string type = problems_of(R"({"optimizer": {"type": "Banana"}})", with_classes());
  EXPECT_THAT(type, AllOf(HasSubstr("or a class of torch.optim"), HasSubstr("\"AdamW\""),
                          Not(HasSubstr("OneBitAdam"))));
  EXPECT_THAT(problems_of(R"({"optimizer": {"type": "RAdma"}})", with_classes()),
              HasSubstr("did you mean \"RAdam\"?"));
  EXPECT_THAT(problems_of(R"({"optimizer": {"type": "AdmaW"}})", with_classes()),
              HasSubstr("did you mean \"AdamW\"?"));
}

TEST(OtherTypes, TheirParametersAreSharedByAllRanks) {
  const auto shared = [](const char* text) {
    return shared_values(resolve_text(text, with_classes()).table);
  };
  const char* const one =
      R"({"optimizer": {"type": "NAdam", "params": {"lr": 1, "momentum_decay": 2}}})";
  EXPECT_EQ(shared(one), shared(R"({"optimizer": {"params": {"momentum_decay": 2, "lr": 1},
      "type": "NAdam"}})"));
  EXPECT_NE(shared(one), shared(R"({"optimizer": {"type": "NAdam", "params": {"lr": 2,
      "momentum_decay": 2}}})"));
}

TEST(Overrides, StandBeforeTheFileAndSayWhy) {
  Context context;
  context.overrides["bf16.enabled"] = {json::Value(true), "the model is in bf16"};
  context.overrides["zero_optimization.leaf_module.names"] = {
      json::Value(json::Array{json::Value("a.b")}), "marked in the program"};
  const Resolved resolved = resolve_text("bf16: {\"enabled\": false}", context);
  EXPECT_EQ(resolved.engine.precision.params, DType::bf16);
  EXPECT_EQ(resolved.engine.shard.leaf_modules.names, std::vector<std::string>{"a.b"});
  EXPECT_EQ(describe(resolved.table.find("bf16.enabled")->origin), "derived: the model is in bf16");
}

TEST(Doors, AKeyThatOnlyOthersActOnIsNeverTakenInSilence) {
  const char* const recompute = R"({"capstan": {"recompute": true}})";
  EXPECT_EQ(problems_of(recompute, at_door(Door::program)), "");
  EXPECT_EQ(problems_of(recompute), "");  // whoever will use it
  for (const Door door : {Door::capstan_package, Door::deepspeed_package}) {
    EXPECT_THAT(problems_of(recompute, at_door(door)),
                AllOf(HasSubstr("is refused here"), HasSubstr("gradient_checkpointing_enable()")));
    EXPECT_EQ(problems_of(R"({"capstan": {"recompute": false}})", at_door(door)), "");
  }
  const char* const fuse = R"({"capstan": {"fuse_activations": false}})";
  EXPECT_THAT(warnings_of(fuse, at_door(Door::program)), HasSubstr("has no effect here"));
  EXPECT_EQ(warnings_of(fuse, at_door(Door::capstan_package)), "");
  const char* const spans = R"({"activation_checkpointing": {"number_checkpoints": 4}})";
  EXPECT_THAT(warnings_of(spans, at_door(Door::deepspeed_package)), HasSubstr("no effect here"));
}

TEST(Doors, ThePackageDeepspeedShufflesAsTorchDoes) {
  const auto seed = [](const char* text, Context context) {
    const Resolved resolved = resolve_text(text, context);
    EXPECT_EQ(resolved.table.integer("capstan.seed"), std::int64_t(resolved.data.seed));
    return resolved.data.seed;
  };
  EXPECT_EQ(seed("{}", at_door(Door::deepspeed_package)), 0u);
  EXPECT_EQ(seed("{}", at_door(Door::program)), 1234u);  // --seed of capstan train comes first
  EXPECT_EQ(seed(R"({"capstan": {"seed": 7}})", at_door(Door::deepspeed_package)), 7u);
}

TEST(Doors, EveryDoorCutsModelsIntoStages) {
  for (const Door door : {Door::program, Door::capstan_package, Door::deepspeed_package}) {
    Context context = at_door(door);
    context.world_size = 6;
    const Resolved resolved = resolve_text(
        R"({"train_micro_batch_size_per_gpu": 1, "pipeline": {"stages": 2}})", context);
    EXPECT_EQ(resolved.engine.mesh.pipe, 2);
    EXPECT_EQ(resolved.world_size, 3);  // that see different data
    EXPECT_EQ(resolve_text(R"({"pipeline": {"stages": "auto"}})", context).engine.mesh.pipe, 1);
  }
  EXPECT_THAT(warnings_of(R"({"pipeline": {"use_reentrant": false}})", at_door(Door::program)),
              HasSubstr("has no effect here"));
}

TEST(Doors, AModelThatIsInStagesSaysHowManyThereAre) {
  Context context = at_door(Door::capstan_package);
  context.world_size = 6;
  context.stages = 3;
  EXPECT_EQ(resolve_text("{}", context).engine.mesh.pipe, 3);
  EXPECT_EQ(resolve_text(R"({"pipeline": {"stages": "auto"}})", context).world_size, 2);
  EXPECT_THAT(problems_of(R"({"pipeline": {"stages": 2}})", context),
              AllOf(HasSubstr("the configuration has 2 stages, but the model has 3"),
                    HasSubstr("(pipeline.stages)")));
}

TEST(Doors, RecomputedLayersOfAStageAreSpansOfItsBlocks) {
  const Resolved resolved = resolve_text(R"({"pipeline": {"activation_checkpoint_interval": 2}})",
                                         at_door(Door::program));
  EXPECT_TRUE(resolved.engine.recompute.enabled);
  EXPECT_EQ(resolved.engine.recompute.span_blocks, 2);
}

TEST(Doors, AFeatureOfOnePackageIsRefusedElsewhereAndTheMessageNamesIt) {
  const char* const text = R"({"torch_autocast": {"enabled": true, "dtype": "bfloat16"}})";
  EXPECT_EQ(problems_of(text, at_door(Door::deepspeed_package)), "");
  EXPECT_EQ(problems_of(text), "");
  EXPECT_THAT(problems_of(text, at_door(Door::program)),
              HasSubstr("only in the package deepspeed"));
}

// As a dict of Python's has none: the path of the key is its place.
TEST(Places, WhatCameFromNoTextIsNamedByItsPath) {
  json::Value params;
  params.add("lr", json::Value("fast"));
  params.add("bets", json::Value(1));
  json::Value optimizer;
  optimizer.add("type", json::Value("AdamW"));
  optimizer.add("params", std::move(params));
  json::Document document{.source = "the configuration"};
  document.root.add("optimizer", std::move(optimizer));
  const Outcome outcome = check(document, {});
  ASSERT_EQ(outcome.problems.size(), 2U);
  EXPECT_EQ(outcome.problems[0].where, "the configuration (optimizer.params.lr)");
  EXPECT_EQ(outcome.problems[1].where, "the configuration (optimizer.params.bets)");
}

TEST(ForeignFiles, AccelerateIsNamedWithTheFileToGiveInstead) {
  const std::string yaml =
      "compute_environment: LOCAL_MACHINE\ndebug: false\ndeepspeed_config:\n"
      "  deepspeed_config_file: ds_config.json\n  zero3_init_flag: true\n"
      "distributed_type: DEEPSPEED\ndowncast_bf16: 'no'\nnum_processes: 2\ntpu_env: []\n";
  const Outcome outcome = check_text(yaml);
  ASSERT_EQ(outcome.problems.size(), 1U);
  EXPECT_THAT(outcome.problems[0].what, HasSubstr("an Accelerate file"));
  EXPECT_THAT(outcome.problems[0].fix, AllOf(HasSubstr("give ds_config.json instead"),
                                             HasSubstr("accelerate launch --config_file ds.json")));
  const std::string inline_keys =
      "compute_environment: LOCAL_MACHINE\ndeepspeed_config:\n  gradient_accumulation_steps: 1\n"
      "  deepspeed_config_file: other.json\n  zero_stage: 3\ndistributed_type: DEEPSPEED\n";
  EXPECT_THAT(problems_of(inline_keys), HasSubstr("give other.json instead"));
  EXPECT_THAT(problems_of("compute_environment: X\ndistributed_type: DEEPSPEED\n"),
              HasSubstr("from its section deepspeed_config"));
  EXPECT_FALSE(recognise_foreign_file(json::read_document("{\"train_batch_size\": 1}", "x")));
}

TEST(Features, TheTableListsEachOnceWithItsStateAndTheDocumentHoldsIt) {
  const std::string table = feature_table(schema());
  for (const Feature feature : all_features()) {
    const std::string state = available(feature) ? " | works" : " | refused | `";
    EXPECT_THAT(table, HasSubstr("| " + std::string(name(feature)) + state));
  }
  EXPECT_THAT(table, HasSubstr("works in the package deepspeed | `torch_autocast`"));
  EXPECT_THAT(read_source_file("docs/config.md"), HasSubstr(table));
}

Context on_ranks(int ranks) {
  Context context = at_door(Door::program);
  context.world_size = ranks;
  return context;
}

TEST(TensorRanks, LeaveTheOthersToTheBatch) {
  const char* const text =
      R"({"tensor_parallel": {"autotp_size": 2}, "train_micro_batch_size_per_gpu": 3})";
  const Resolved resolved = resolve_text(text, on_ranks(8));
  EXPECT_EQ(resolved.engine.mesh.tensor, 2);
  EXPECT_EQ(resolved.world_size, 4);
  EXPECT_EQ(resolved.engine.batch.train_samples, 12);
  EXPECT_THAT(resolved.world_size_origin.detail,
              HasSubstr("8 ranks / 2 (tensor_parallel.autotp_size)"));
  for (const char* const off : {"{}", R"({"tensor_parallel": {"autotp_size": 1}})"}) {
    EXPECT_EQ(resolve_text(off, on_ranks(8)).world_size, 8);
    EXPECT_EQ(resolve_text(off, on_ranks(8)).engine.mesh.tensor, 1);
  }
}

TEST(TensorRanks, MustDivideAllRanks) {
  EXPECT_THAT(problems_of(R"({"tensor_parallel": {"autotp_size": 3}})", on_ranks(8)),
              HasSubstr("cannot form groups of 3 (tensor_parallel.autotp_size)"));
}

TEST(TensorRanks, OfTheCommandLineTakeThePlaceOfTheFiles) {
  Context context = on_ranks(4);
  context.overrides["tensor_parallel.autotp_size"] = {json::Value(4), "--tensor"};
  EXPECT_EQ(resolve_text(R"({"tensor_parallel": {"autotp_size": 2}})", context).world_size, 1);
}

TEST(TensorRanks, AreThereForEveryDoor) {
  for (const Door door : {Door::program, Door::capstan_package, Door::deepspeed_package}) {
    EXPECT_EQ(problems_of(R"({"tensor_parallel": {"autotp_size": 2}})", at_door(door)), "");
  }
}

TEST(TensorRanks, ShareNoSequences) {
  EXPECT_THAT(
      problems_of(R"({"tensor_parallel": {"autotp_size": 2}, "sequence_parallel_size": 2})",
                  on_ranks(4)),
      HasSubstr("cannot share sequences"));
}

}  // namespace
}  // namespace capstan::config

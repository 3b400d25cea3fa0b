// Configurations as people write them, whole, annotated, and broken in the ways that happen.
#include <string>
#include <variant>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support.h"

namespace capstan::config {
namespace {

using ::testing::HasSubstr;

std::string snippet(const std::string& name) {
  const std::string text = read_source_file("tests/config/snippets/" + name + ".hjson");
  EXPECT_NE(text, "") << "no snippet " << name;
  return text;
}

TEST(Snippets, AnAnnotatedFileWithAllSectionsIsFine) {
  const Resolved resolved = resolve_text(snippet("annotated"), ranks(2));
  EXPECT_EQ(resolved.engine.shard.stage, 3);
  EXPECT_EQ(resolved.engine.batch.train_samples, 2);
  EXPECT_EQ(resolved.engine.profile.steps_per_print, 100);
  EXPECT_EQ(resolved.engine.shard.sub_group_elems, 1'000'000'000'000);
  EXPECT_EQ(resolved.engine.optimizer->kind, optim::Kind::adamw);
  ASSERT_TRUE(std::holds_alternative<schedule::WarmupLr>(*resolved.engine.schedule));
  EXPECT_EQ(resolved.engine.precision.params, DType::fp32);
}

TEST(Snippets, EveryPlaceholderOfADocumentationIsNamedInOneReport) {
  const std::string problems = problems_of(snippet("annotated_with_placeholders"));
  EXPECT_THAT(problems, HasSubstr("[0|1|2|3] is how documentation lists the choices"));
  EXPECT_THAT(problems, HasSubstr("for example \"stage\": 0"));
  EXPECT_THAT(problems, HasSubstr("for example \"round_robin_gradients\": true"));
  EXPECT_THAT(problems, HasSubstr("for example \"elastic_checkpoint\": true"));
  EXPECT_THAT(problems,
              HasSubstr("(zero_optimization.offload_optimizer.device) | write one of \"none\""));
  EXPECT_THAT(problems, HasSubstr("(zero_optimization.offload_param.device)"));
  EXPECT_EQ(check_text(snippet("annotated_with_placeholders")).problems.size(), 5U);
}

TEST(Snippets, TrueInQuotesIsTakenWithAWarningThatTeaches) {
  const Resolved resolved = resolve_text(snippet("stage2_fp16_auto"), ranks(2));
  EXPECT_EQ(resolved.engine.precision.params, DType::fp16);
  EXPECT_EQ(resolved.engine.shard.stage, 2);
  EXPECT_EQ(resolved.engine.optimizer->kind, optim::Kind::adamw);
  const auto& schedule = std::get<schedule::WarmupDecayLr>(*resolved.engine.schedule);
  EXPECT_EQ(schedule.warmup.max_lr, schedule::PerGroup{0.001}) << "auto: the optimizer's";
  EXPECT_THAT(warnings_of(snippet("stage2_fp16_auto")),
              HasSubstr("\"true\" is a string and was read as true; write true without quotes | "
                        "ds.json:3:20 (fp16.enabled)"));
}

TEST(Snippets, ACutOffFileSaysWhereItWasCut) {
  try {
    check_text(snippet("cut_off"));
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.info().what, HasSubstr("inside zero_optimization.offload_optimizer"));
    EXPECT_EQ(error.info().where, "ds.json:29:23");
    EXPECT_THAT(error.info().fix, HasSubstr("cut off"));
  }
}

TEST(Snippets, ANestedFp16SectionIsSentToTheTopLevel) {
  EXPECT_EQ(
      problems_of(snippet("fp16_inside_zero")),
      "unknown key \"fp16\" | ds.json:2:7 (zero_optimization) | \"fp16\" belongs to the top level: "
      "move it out of zero_optimization\n");
}

TEST(Snippets, AnUnknownBucketSizeFindsItsNearestName) {
  EXPECT_EQ(
      problems_of(snippet("stage2_unknown_bucket")),
      "unknown key \"all_reduce_bucket_size\" | ds.json:4:2 (zero_optimization) | did you mean "
      "\"reduce_bucket_size\"?\n");
}

TEST(Snippets, PartsWithoutBracesAreWholeFiles) {
  EXPECT_EQ(resolve_text(snippet("stage1")).engine.shard.stage, 1);
}

TEST(Snippets, OffloadToTheHostIsHonouredFromTheStageThatHasShards) {
  const std::string offload = snippet("offload_to_host");
  const auto at_stage = [&](int stage) {
    const std::string start = "\"zero_optimization\": {";
    std::string text = offload;
    text.replace(text.find(start), start.size(), fmt::format("{} \"stage\": {},", start, stage));
    return resolve_text(text);
  };
  const Resolved three = at_stage(3);
  EXPECT_EQ(three.engine.store.params.placement, store::Placement::host);
  EXPECT_EQ(three.engine.store.optimizer.placement, store::Placement::host);
  EXPECT_TRUE(three.warnings.empty());
  const Resolved two = at_stage(2);
  EXPECT_EQ(two.engine.store.params.placement, store::Placement::device);
  ASSERT_EQ(two.warnings.size(), 1u);
  EXPECT_THAT(two.warnings[0].what, HasSubstr("offload_param has no effect below stage 3"));
  EXPECT_EQ(resolve_text(offload).warnings.size(), 2u);
}

}  // namespace
}  // namespace capstan::config

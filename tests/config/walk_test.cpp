#include "capstan/config/walk.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/config/explain.h"
#include "support.h"

namespace capstan::config {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Walk, ReportsEveryProblemAtOnce) {
  const Outcome outcome = check_text(
      "{\"gradient_clip\": 1, \"zero_optimization\": {\"stage\": 4, \"stge\": 1, \"overlap_comm\": "
      "\"maybe\"},\n"
      "\"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}, \"fp16\": {}}");
  EXPECT_FALSE(outcome.resolved.has_value());
  EXPECT_EQ(outcome.problems.size(), 6U);
  const ErrorInfo joined = join_problems(outcome.problems, "ds.json");
  for (const char* part :
       {"6 problems in ds.json", "did you mean \"gradient_clipping\"?",
        "4 is given, but an integer from 0 to 3 is expected", "did you mean \"stage\"?",
        "\"maybe\" is given", "is given twice", "fp16 and bf16 are both enabled"}) {
    EXPECT_THAT(joined.what, HasSubstr(part));
  }
  EXPECT_NE(joined.fix, "");
}

TEST(Walk, ResolveThrowsTheWholeReport) {
  EXPECT_THROW(resolve_text("{\"stages\": 1}"), ConfigError);
}

TEST(Walk, LenientTurnsUnknownKeysIntoWarningsAndNothingElse) {
  Context lenient;
  lenient.lenient = true;
  EXPECT_EQ(problems_of("{\"my_own_key\": 1, \"zero_optimization\": {\"x\": 2}}", lenient), "");
  EXPECT_THAT(warnings_of("{\"my_own_key\": 1}", lenient),
              HasSubstr("unknown key \"my_own_key\" is ignored"));
  EXPECT_NE(problems_of("{\"zero_optimization\": {\"stage\": 9}}", lenient), "");
}

TEST(Walk, AKeyOfAnotherSectionIsSentThere) {
  EXPECT_THAT(problems_of("{\"stage\": 2}"), HasSubstr("belongs in \"zero_optimization\""));
  EXPECT_THAT(problems_of("{\"zero_optimization\": {\"gradient_clipping\": 1}}"),
              HasSubstr("belongs to the top level"));
}

TEST(Walk, ADotInANameReachesNowhere) {
  EXPECT_THAT(problems_of("{\"zero_optimization.stage\": 2}"), HasSubstr("unknown key"));
  EXPECT_THAT(problems_of("{\"zero_optimization.offload_param\": {}}"), HasSubstr("unknown key"));
}

TEST(Walk, KnowsAliasesAndRefusesBothSpellingsAtOnce) {
  EXPECT_EQ(
      resolve_text("zero_optimization: {\"max_live_parameters\": 5}").engine.shard.max_live_bytes,
      20);
  EXPECT_THAT(
      problems_of(
          "zero_optimization: {\"max_live_parameters\": 5, \"stage3_max_live_parameters\": 5}"),
      HasSubstr("are the same key"));
  EXPECT_EQ(resolve_text("bfloat16: {\"enabled\": true}").engine.precision.params, DType::bf16);
  EXPECT_THAT(problems_of("bf16: {\"enabled\": true}\nbfloat16: {\"enabled\": true}"),
              HasSubstr("under two spellings"));
}

TEST(Walk, WarnsOfDeprecatedSpellingsAndForms) {
  EXPECT_THAT(
      warnings_of("zero_optimization: {\"stage3_gather_fp16_weights_on_model_save\": true}"),
      HasSubstr("write \"stage3_gather_16bit_weights_on_model_save\""));
  EXPECT_EQ(resolve_text("zero_optimization: true").engine.shard.stage, 1);
  EXPECT_EQ(resolve_text("zero_optimization: false").engine.shard.stage, 0);
  EXPECT_THAT(warnings_of("zero_optimization: true"), HasSubstr("{\"stage\": 1}"));
}

TEST(Walk, FeaturesOfLaterAreFineWhileTheyAreOff) {
  const char* const groups =
      R"(compression_training: {"weight_quantization": {"different_groups": {"a": {"params":
      {"start_bits": 8}}}, "shared_parameters": {"enabled": false, "schedule_offset": 5}}})";
  for (const char* text :
       {"flops_profiler: {}", "flops_profiler: {\"enabled\": false, \"profile_step\": 7}",
        "autotuning: null", "elasticity: {\"enabled\": \"false\", \"micro_batch_sizes\": [1, 2]}",
        "sparse_attention: {}", groups, "weight_quantization: {}", "datastates_ckpt: false",
        "zero_optimization: {\"offload_optimizer\": {\"device\": \"none\", \"ratio\": 1}}",
        "zero_optimization: {\"zero_hpz_partition_size\": 1, \"mics_shard_size\": -1}",
        "zero_optimization: {\"cpu_offload\": false, \"zenflow\": null}",
        "zero_optimization: {\"offload_optimizer\": null, \"offload_param\": \"auto\"}",
        "tensorboard: {\"enabled\": false, \"output_path\": \"x\"}",
        "amp: {\"enabled\": false, \"x\": 1}", "tensor_parallel: {\"autotp_size\": 0}",
        "sequence_parallel_size: 1"}) {
    EXPECT_EQ(problems_of(text), "") << text;
  }
}

TEST(Walk, FeaturesOfLaterAreRefusedOnceAndByName) {
  const auto refused = [](const char* text, const char* words) {
    const Outcome outcome = check_text(text);
    ASSERT_EQ(outcome.problems.size(), 1U) << text << "\n" << problems_of(text);
    EXPECT_THAT(outcome.problems[0].what, HasSubstr(words)) << text;
    EXPECT_THAT(outcome.problems[0].what, HasSubstr("not available yet")) << text;
  };
  if (!available(Feature::flops_profiler)) {
    refused("flops_profiler: {\"enabled\": true, \"profile_step\": 7, \"top_modules\": 3}",
            "flops profiler");
  }
  if (!available(Feature::zero_plus_plus)) {
    refused("zero_optimization: {\"zero_quantized_weights\": true}", "ZeRO++");
  }
  if (!available(Feature::one_bit)) {
    refused("optimizer: {\"params\": {\"freeze_step\": 10, \"lr\": 0.1}, \"type\": \"OneBitAdam\"}",
            "compressed communication");
  }
  if (!available(Feature::weight_quantization))
    refused("weight_quantization: {\"num_bits\": 4}", "quantised");
  if (!available(Feature::nebula))
    refused("datastates_ckpt: {\"host_cache_size\": 1}", "checkpoint engines");
}

// Upstream turns these on where they stand, so not even one with defaults may pass in silence.
TEST(Walk, SectionsThatAreOnByTheirPresenceAreRefusedEvenWithDefaults) {
  for (const char* text :
       {"sparse_attention: {\"mode\": \"fixed\"}", "sparse_attention: {\"mode\": \"dense\"}",
        "zero_optimization: {\"zenflow\": {}}",
        "zero_optimization: {\"zenflow\": {\"topk_ratio\": 0.1}}"}) {
    const Outcome outcome = check_text(text);
    ASSERT_EQ(outcome.problems.size(), 1U) << text;
    EXPECT_THAT(outcome.problems[0].what, HasSubstr("not available yet")) << text;
    EXPECT_THAT(outcome.problems[0].fix, HasSubstr("remove the section")) << text;
  }
}

TEST(Walk, WhoOnlyReadsIsWarnedOfWhatIsRefused) {
  const char* const text = "zero_optimization: {\"zenflow\": {}, \"zero_quantized_weights\": true}";
  Context reader;
  reader.reads_only = true;
  EXPECT_EQ(problems_of(text, reader), "");
  EXPECT_THAT(warnings_of(text, reader), HasSubstr("ZenFlow: not available yet"));
  EXPECT_THAT(warnings_of(text, reader), HasSubstr("ZeRO++"));
  EXPECT_NE(problems_of("zero_optimization: {\"stage\": 9}", reader), "");
}

TEST(Walk, AnEmptyFileIsAProblemAndEmptyBracesAreNot) {
  for (const char* text : {"", "  \n\t\n", "# nothing yet\n// nor here"}) {
    EXPECT_THAT(problems_of(text), HasSubstr("the configuration is empty")) << text;
  }
  EXPECT_EQ(problems_of("{}"), "");
}

// Each of these took more than half a minute while the time grew with the square.
TEST(Walk, TwoHundredThousandKeysAreAnswered) {
  const auto many = [](const char* value) {
    std::string text;
    for (int i = 0; i < 200'000; ++i) text += fmt::format("\"k{}\": {}, ", i, value);
    return text;
  };
  for (const std::string& text :
       {"{" + many("7") + "}", "{" + many("[1]") + "}",
        "{\"zero_optimization\": {" + many("null") + "}}",
        "{\"capstan\": {\"parameter_groups\": {" + many("{\"lr\": 1}") + "}}}"}) {
    const Outcome outcome = check_text(text);
    EXPECT_GE(outcome.problems.size(), 200'000U);
    const std::string told = join_problems(outcome.problems, "ds.json").what;
    EXPECT_THAT(told, HasSubstr("problems in ds.json"));
    EXPECT_LT(told.size(), 100'000U);
    EXPECT_THAT(told, HasSubstr("... and "));
  }
  Context lenient;
  lenient.lenient = true;
  EXPECT_EQ(check_text("{" + many("7") + "}", lenient).warnings.size(), 200'000U);
  const Resolved resolved =
      resolve_text("{\"optimizer\": {\"type\": \"SGD\"}, \"capstan\": {\"parameter_groups\": {" +
                   many("{\"parameters\": \"x\"}") + "}}}");
  EXPECT_EQ(resolved.engine.optimizer->groups.size(), 200'000U);
  EXPECT_THAT(explain(resolved), HasSubstr("capstan.parameter_groups.k199999"));
}

TEST(Walk, ParametersMayStandBeforeTheirType) {
  const Resolved resolved =
      resolve_text("optimizer: {\"params\": {\"momentum\": 0.5}, \"type\": \"sgd\"}");
  EXPECT_EQ(resolved.engine.optimizer->kind, optim::Kind::sgd);
  EXPECT_EQ(resolved.engine.optimizer->hyper.momentum, 0.5);
}

TEST(Walk, ParametersOfAnotherTypeAreUnknown) {
  const std::string momentum =
      problems_of("optimizer: {\"type\": \"Adam\", \"params\": {\"momentum\": 0.5}}");
  EXPECT_THAT(momentum, HasSubstr("unknown key \"momentum\""));
  EXPECT_THAT(momentum, HasSubstr("remove it"));
  EXPECT_THAT(problems_of("optimizer: {\"type\": \"Adam\", \"params\": {\"max_grad_norm\": 1}}"),
              HasSubstr("use the top-level key gradient_clipping"));
}

TEST(Walk, AMissingTypeOrRequiredKeyIsNamed) {
  EXPECT_THAT(problems_of("optimizer: {\"params\": {\"lr\": 1}}"),
              HasSubstr("\"type\" is missing"));
  EXPECT_THAT(problems_of("scheduler: {\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 1}}"),
              HasSubstr("\"cycle_max_lr\" is missing"));
  EXPECT_THAT(problems_of("scheduler: {\"type\": \"WarmupDecayLR\"}"),
              HasSubstr("\"total_num_steps\" is missing"));
  EXPECT_THAT(problems_of("optimizer: {\"type\": \"Adamm\", \"params\": {\"lr\": 1}}"),
              HasSubstr("did you mean \"Adam\"?"));
  EXPECT_THAT(problems_of("optimizer: {\"type\": \"AdmaW\"}"),
              HasSubstr("did you mean \"AdamW\"?"));
  EXPECT_THAT(problems_of("optimizer: {\"type\": null}"), HasSubstr("\"type\" is missing"));
  EXPECT_EQ(problems_of("optimizer: {}\nscheduler: {}"), "");
}

TEST(Walk, ASectionThatIsNoObjectIsAProblem) {
  EXPECT_THAT(problems_of("{\"fp16\": true}"), HasSubstr("true is given, but this is a section"));
  EXPECT_THAT(problems_of("[1, 2]"), HasSubstr("is a list, not an object"));
  EXPECT_THAT(problems_of("7"), HasSubstr("is a number, not an object"));
}

TEST(Walk, AutoTakesTheCallersValueElseTheStatedRule) {
  Context context;
  context.auto_values.emplace("optimizer.params.lr", json::Value(5e-5));
  context.hidden_size = 4096;
  const Resolved resolved = resolve_text(
      "{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": \"auto\", \"eps\": \"auto\"}},\n"
      "\"zero_optimization\": {\"stage\": 3, \"reduce_bucket_size\": \"auto\", "
      "\"stage3_prefetch_bucket_size\": \"auto\", \"stage3_param_persistence_threshold\": "
      "\"auto\"}}",
      context);
  EXPECT_EQ(resolved.engine.optimizer->hyper.lr, 5e-5);
  EXPECT_EQ(resolved.engine.optimizer->hyper.eps, 1e-8);
  EXPECT_EQ(resolved.table.integer("zero_optimization.reduce_bucket_size"), 16777216);
  EXPECT_EQ(resolved.engine.shard.prefetch_bytes, 15099494 * 4);
  EXPECT_EQ(resolved.engine.shard.persistence_threshold_elems, 40960);
  EXPECT_THAT(describe(resolved.table.find("optimizer.params.lr")->origin),
              HasSubstr("filled in by the caller"));
  EXPECT_THAT(describe(resolved.table.find("optimizer.params.eps")->origin), HasSubstr("auto: "));
  EXPECT_THAT(describe(resolved.table.find("fp16.hysteresis")->origin), Not(HasSubstr("auto")));
}

}  // namespace
}  // namespace capstan::config

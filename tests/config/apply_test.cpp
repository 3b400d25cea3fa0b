#include "capstan/config/apply.h"

#include <limits>
#include <variant>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/config/walk.h"
#include "support.h"

namespace capstan::config {
namespace {

using ::testing::HasSubstr;

engine::Options engine_of(std::string_view text) { return resolve_text(text).engine; }

TEST(Apply, AdamMeansAdamWUnlessToldOtherwise) {
  const auto kind = [](const char* type, const char* mode) {
    return engine_of(text_of({{"optimizer.type", type}, {"optimizer.params.adam_w_mode", mode}}))
        .optimizer->kind;
  };
  EXPECT_EQ(kind("\"Adam\"", "true"), optim::Kind::adamw);
  EXPECT_EQ(kind("\"Adam\"", "false"), optim::Kind::adam);
  EXPECT_EQ(kind("\"AdamW\"", "false"), optim::Kind::adamw);
}

TEST(Apply, TorchAdamBringsItsOwnDefaultDecay) {
  const std::string adamw = "optimizer: {\"type\": \"AdamW\", \"params\": {\"torch_adam\": true";
  EXPECT_EQ(engine_of(adamw + "}}").optimizer->hyper.weight_decay, 0.01);
  EXPECT_EQ(engine_of(adamw + ", \"weight_decay\": 0.5}}").optimizer->hyper.weight_decay, 0.5);
  EXPECT_EQ(engine_of(adamw + ", \"weight_decay\": 0}}").optimizer->hyper.weight_decay, 0);
}

TEST(Apply, EachOptimizerHasItsOwnDefaults) {
  EXPECT_EQ(engine_of("optimizer: {\"type\": \"Adagrad\"}").optimizer->hyper.lr, 1e-2);
  EXPECT_EQ(engine_of("optimizer: {\"type\": \"Adagrad\"}").optimizer->hyper.eps, 1e-10);
  EXPECT_EQ(engine_of("optimizer: {\"type\": \"lion\", \"params\": {\"betas\": [0.95, 0.98]}}")
                .optimizer->hyper.beta2,
            0.98);
  EXPECT_FALSE(engine_of("{}").optimizer.has_value());
}

TEST(Apply, ParameterGroupsInheritWhatTheyDoNotSay) {
  const optim::Options options = *engine_of(R"({
    "optimizer": {"type": "AdamW", "params": {"lr": 0.1, "weight_decay": 0.2}},
    "capstan": {"parameter_groups": {
      "no_decay": {"parameters": ["*.bias", "*ln_*"], "weight_decay": 0},
      "slow": {"parameters": "wte.*", "lr": 0.01}}}})")
                                      .optimizer;
  ASSERT_EQ(options.groups.size(), 2U);
  EXPECT_EQ(options.groups[0].patterns, (std::vector<std::string>{"*.bias", "*ln_*"}));
  EXPECT_EQ(options.groups[0].hyper.weight_decay, 0);
  EXPECT_EQ(options.groups[0].hyper.lr, 0.1);
  EXPECT_EQ(options.groups[1].hyper.lr, 0.01);
  EXPECT_EQ(options.groups[1].hyper.weight_decay, 0.2);
  EXPECT_THAT(problems_of("capstan: {\"parameter_groups\": {\"a\": {\"parameters\": [\"x\"]}}}"),
              HasSubstr("no optimizer to use them"));
  EXPECT_THAT(
      problems_of(
          "optimizer: {\"type\": \"SGD\"}\ncapstan: {\"parameter_groups\": {\"a\": {\"lr\": 1}}}"),
      HasSubstr("\"parameters\" is missing"));
}

TEST(Apply, GroupNamesMayHoldAnything) {
  const optim::Options options = *engine_of(R"({"optimizer": {"type": "SGD"},
    "capstan": {"parameter_groups": {"a.b": {"parameters": ["x"], "lr": 0.5},
                                     "*": {"parameters": ["y"]}}}})")
                                      .optimizer;
  ASSERT_EQ(options.groups.size(), 2U);
  EXPECT_EQ(options.groups[0].hyper.lr, 0.5);
  EXPECT_EQ(options.groups[1].patterns, std::vector<std::string>{"y"});
}

TEST(Apply, WhatARunTellsAboutItself) {
  EXPECT_EQ(engine_of("steps_per_print: 5").profile.state_dump, "");
  const profile::Options told = engine_of(R"({"dump_state": true, "steps_per_print": 7,
      "comms_logger": {"enabled": true, "verbose": true, "debug": true}})")
                                    .profile;
  EXPECT_THAT(told.state_dump, HasSubstr("steps_per_print"));
  EXPECT_THAT(told.state_dump, HasSubstr("gradient_clipping"));
  EXPECT_TRUE(told.comms.verbose && told.comms.debug);
}

TEST(Apply, SchedulesOfEveryKind) {
  const auto schedule = [](const std::string& type, const std::string& params) {
    return *engine_of("scheduler: {\"type\": \"" + type + "\", \"params\": {" + params + "}}")
                .schedule;
  };
  const auto warmup = std::get<schedule::WarmupLr>(
      schedule("WarmupLR",
               "\"warmup_num_steps\": 0, \"warmup_type\": \"linear\", \"warmup_max_lr\": [1, 2]"));
  EXPECT_EQ(warmup.num_steps, 0);
  EXPECT_EQ(warmup.type, schedule::WarmupType::linear);
  EXPECT_EQ(warmup.max_lr, (schedule::PerGroup{1, 2}));
  const auto decay =
      std::get<schedule::WarmupDecayLr>(schedule("warmupdecaylr", "\"total_num_steps\": 5e3"));
  EXPECT_EQ(decay.total_steps, 5000);
  EXPECT_EQ(decay.warmup.max_lr, schedule::PerGroup{0.001});
  const auto cosine = std::get<schedule::WarmupCosineLr>(
      schedule("WarmupCosineLR", "\"total_num_steps\": 10, \"cos_min_ratio\": 0.5"));
  EXPECT_EQ(cosine.cos_min_ratio, 0.5);
  const auto cycle = std::get<schedule::OneCycle>(schedule(
      "OneCycle", "\"cycle_min_lr\": 0.01, \"cycle_max_lr\": 0.1, \"cycle_first_step_size\": 4"));
  EXPECT_EQ(cycle.first_steps, 4);
  EXPECT_FALSE(cycle.second_steps.has_value());
  const auto range =
      std::get<schedule::LrRangeTest>(schedule("LRRangeTest", "\"lr_range_test_staircase\": 1"));
  EXPECT_TRUE(range.staircase);
}

TEST(Apply, PrecisionOfEveryRow) {
  const precision::Options half =
      engine_of(
          "bf16: {\"enabled\": true, \"bf16_master_weights_and_grads\": true, "
          "\"bf16_optimizer_states\": true}")
          .precision;
  EXPECT_EQ(half.params, DType::bf16);
  EXPECT_EQ(half.master, DType::bf16);
  EXPECT_EQ(half.grad_accum, DType::bf16);
  EXPECT_EQ(half.optimizer_state, DType::bf16);
  const precision::Options mixed =
      engine_of(
          "bf16: {\"enabled\": true}\ncommunication_data_type: FP32\n"
          "data_types: {\"grad_accum_dtype\": \"bfloat16\", \"buffer_dtype\": \"torch.float16\"}")
          .precision;
  EXPECT_EQ(mixed.master, DType::fp32);
  EXPECT_EQ(mixed.grad_accum, DType::bf16);
  EXPECT_EQ(mixed.reduce_dtype(), DType::fp32);
  EXPECT_EQ(mixed.buffers, DType::fp16);
  EXPECT_EQ(engine_of("fp16: {\"enabled\": true}").precision.reduce_dtype(), DType::fp16);
  EXPECT_THAT(problems_of("bf16: {\"enabled\": true}\ndata_types: {\"param_dtype\": \"fp16\"}"),
              HasSubstr("param_dtype is fp16, but the sections fp16 and bf16 make it bf16"));
  EXPECT_THAT(problems_of("capstan: {\"master_dtype\": \"bf16\"}"),
              HasSubstr("master weights in bf16"));
}

TEST(Apply, InputsAreCastInFp16Only) {
  const auto casts = [](const char* precision) {
    return engine_of(text_of({{precision, "true"}, {"fp16.auto_cast", "true"}}))
        .precision.cast_inputs;
  };
  EXPECT_TRUE(casts("fp16.enabled"));
  EXPECT_FALSE(casts("bf16.enabled"));
  EXPECT_FALSE(engine_of("fp16: {\"enabled\": true}").precision.cast_inputs);
}

TEST(Apply, ElementCountsBecomeBytesAndSaturate) {
  EXPECT_EQ(
      engine_of(
          "fp16: {\"enabled\": true}\nzero_optimization: {\"stage3_prefetch_bucket_size\": 1000}")
          .shard.prefetch_bytes,
      2000);
  EXPECT_EQ(
      engine_of("zero_optimization: {\"stage3_max_live_parameters\": 9e18}").shard.max_live_bytes,
      std::numeric_limits<std::int64_t>::max());
}

TEST(Apply, ANegativeClippingNormTurnsClippingOff) {
  EXPECT_EQ(engine_of("{\"gradient_clipping\": -1}").gradient_clipping, 0);
  EXPECT_EQ(engine_of("{\"gradient_clipping\": 0.5}").gradient_clipping, 0.5);
}

TEST(Apply, StepsPerPrintMayBeInfinite) {
  EXPECT_EQ(engine_of("{\"steps_per_print\": Infinity}").profile.steps_per_print, 0);
  EXPECT_EQ(engine_of("{\"steps_per_print\": 10}").profile.steps_per_print, 10);
  EXPECT_EQ(engine_of("{\"steps_per_print\": null}").profile.steps_per_print, 0);
}

TEST(Apply, PlacementsFollowTheirSectionsOnceTheyAreAvailable) {
  // The walk refuses what is not available; the mapping below it holds either way.
  const json::Document document =
      json::read_document(R"({"fp16": {"enabled": true}, "zero_optimization": {"stage": 3,
      "offload_optimizer": {"device": "nvme", "nvme_path": "/x,/y", "buffer_count": 6, "ratio": 0.5},
      "offload_param": {"device": "cpu", "pin_memory": false, "buffer_size": 10}}})",
                          "ds.json");
  const Table table = walk(document, {}).table;
  const store::Options options = to_store(table);
  EXPECT_EQ(options.optimizer.placement, store::Placement::nvme);
  EXPECT_EQ(options.optimizer.nvme_paths, (std::vector<std::string>{"/x", "/y"}));
  EXPECT_EQ(options.optimizer.buffer_count, 6);
  EXPECT_EQ(options.optimizer.ratio, 0.5);
  EXPECT_EQ(options.params.placement, store::Placement::host);
  EXPECT_FALSE(options.params.pin);
  EXPECT_EQ(options.params.buffer_bytes, 20);
}

TEST(Apply, OffloadedUpdatesAndWhatTheDeviceHolds) {
  const auto store_of = [](const char* text) {
    return to_store(walk(json::read_document(text, "ds.json"), {}).table);
  };
  const store::Options plain = store_of(R"({"zero_optimization": {"stage": 2,
      "offload_optimizer": {"device": "cpu"}}})");
  EXPECT_EQ(plain.optimizer.early_updates, store::EarlyUpdates::never);
  EXPECT_FALSE(plain.optimizer.auto_ratio);
  EXPECT_FALSE(plain.device_bytes.has_value());
  const store::Options own = store_of(R"({"zero_optimization": {"stage": 2,
      "offload_optimizer": {"device": "cpu", "ratio": "auto"}},
      "capstan": {"early_updates": "measured", "early_updates_bytes": 100, "device_bytes": 1000,
                  "activation_bytes": 10}})");
  EXPECT_EQ(own.optimizer.early_updates, store::EarlyUpdates::measured);
  EXPECT_EQ(own.optimizer.early_bytes, 100);
  EXPECT_TRUE(own.optimizer.auto_ratio);
  EXPECT_EQ(own.optimizer.ratio, 1.0);
  EXPECT_EQ(own.device_bytes, 1000);
  EXPECT_EQ(own.activation_bytes, 10);
  const store::Options super = store_of(R"({"zero_optimization": {"stage": 3,
      "offload_optimizer": {"device": "cpu", "super_offload": true, "cpuadam_cores_perc": 0.5}}})");
  EXPECT_EQ(super.optimizer.early_updates, store::EarlyUpdates::always);
  EXPECT_EQ(super.optimizer.core_share, 0.5);
}

TEST(Apply, ReportsAreAskedForByAnyOfTheirKeys) {
  const auto asks = [](std::string_view text) {
    return asks_for_reports(resolve_text(text).table);
  };
  EXPECT_FALSE(asks("{}"));
  EXPECT_FALSE(asks("steps_per_print: Infinity"));
  for (const char* text :
       {"steps_per_print: 10", "wall_clock_breakdown: true", "memory_breakdown: true",
        "dump_state: true", "comms_logger: {\"enabled\": true}",
        "zero_optimization: {\"stage\": 3, \"log_trace_cache_warnings\": true}"}) {
    EXPECT_TRUE(asks(text)) << text;
  }
}

TEST(Apply, TheKeysSayWhereTheOptimizerLivesAtWhateverStage) {
  const auto placement = [](std::string_view text) {
    return optimizer_placement(check_text(text).resolved.value().table);
  };
  EXPECT_EQ(placement("{}"), store::Placement::device);
  EXPECT_EQ(placement("zero_optimization: {\"stage\": 1, \"cpu_offload\": true}"),
            store::Placement::host);
  EXPECT_EQ(
      placement("zero_optimization: {\"stage\": 0, \"offload_optimizer\": {\"device\": \"cpu\"}}"),
      store::Placement::host);
}

TEST(Apply, WritesIntoGatheredParametersAreAllowedOnlyWhereTheFileSaysSo) {
  EXPECT_FALSE(may_write_gathered(resolve_text("{}").table));
  EXPECT_TRUE(may_write_gathered(
      resolve_text(R"({"zero_optimization": {"enable_sanity_checks": false}})").table));
  EXPECT_FALSE(may_write_gathered(
      resolve_text(R"({"zero_optimization": {"enable_sanity_checks": true}})").table));
}

TEST(Apply, OperationsUnderAutocastAreInBf16UnlessItSaysOtherwise) {
  EXPECT_EQ(autocast_dtype(resolve_text("{}").table), DType::bf16);
  Context deepspeed;
  deepspeed.door = Door::deepspeed_package;
  EXPECT_EQ(autocast_dtype(
                resolve_text(R"({"torch_autocast": {"enabled": true, "dtype": "fp16"}})", deepspeed)
                    .table),
            DType::fp16);
}

TEST(Apply, RulesBetweenKeys) {
  const auto has = [](const char* text, const char* words) {
    EXPECT_THAT(problems_of(text), HasSubstr(words)) << text;
  };
  has("bf16: {\"enabled\": true, \"bf16_optimizer_states\": true}",
      "needs bf16_master_weights_and_grads");
  has("fp16: {\"fp16_master_weights_and_grads\": true}", "fp16 is not enabled");
  has("optimizer: {\"type\": \"SGD\", \"params\": {\"nesterov\": true}}",
      "nesterov needs momentum");
  has("optimizer: {\"type\": \"Adam\", \"params\": {\"torch_adam\": true, \"bias_correction\": "
      "false}}",
      "always corrects its bias");
  has("prescale_gradients: true\ngradient_predivide_factor: 2", "both divide");
  has("gradient_allreduce_op: sum\nzero_optimization: {\"stage\": 3}", "with ZeRO stage 3");
  has("gradient_allreduce_op: sum\nzero_optimization: {\"zenflow\": {}}", "with ZenFlow");
  has("gradient_allreduce_op: sum\ncompile: {\"deepcompile\": true}", "with DeepCompile");
  has("fp16: {\"enabled\": true, \"initial_scale_power\": 1, \"min_loss_scale\": 4}",
      "below min_loss_scale");
  has("data_parallel_size: 4", "the run has 1 data-parallel rank (");
  has("scheduler: {\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": [1, 2], "
      "\"cycle_max_lr\": 1}}",
      "swap");
  EXPECT_THAT(warnings_of("vocabulary_size: 50257"), HasSubstr("not a multiple of 8"));
  EXPECT_THAT(warnings_of("gradient_allreduce_op: sum\nprescale_gradients: true"),
              HasSubstr("\"sum\" never divides"));
}

TEST(Rules, LambCannotLiveOnNvmeAndTheProblemNamesTheKeyAndTheWayOut) {
  const std::string text = R"({"optimizer": {"type": "Lamb"}, "zero_optimization": {"stage": 2,
      "offload_optimizer": {"device": "nvme", "nvme_path": "/x"}}})";
  EXPECT_THAT(problems_of(text), testing::AllOf(testing::HasSubstr("LAMB needs norms"),
                                                testing::HasSubstr("offload_optimizer.device"),
                                                testing::HasSubstr("\"cpu\"")));
}

}  // namespace
}  // namespace capstan::config

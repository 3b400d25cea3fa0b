#include "capstan/config/shared_values.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "support.h"

namespace capstan::config {
namespace {

SharedValues shared(std::string_view text, int ranks_of_run = 2) {
  return shared_values(resolve_text(text, ranks(ranks_of_run)).table);
}

// "key: ours, theirs" at the first place where two lists differ; empty: they do not.
std::string first_difference(const SharedValues& ours, const SharedValues& theirs) {
  const auto [a, b] = std::mismatch(ours.begin(), ours.end(), theirs.begin(), theirs.end());
  if (a == ours.end() && b == theirs.end()) return "";
  return a->first + ": " + a->second + ", " + b->second;
}

TEST(SharedValues, NameTheKeyInWhichTwoRanksDiffer) {
  const auto differ = [](const char* a, const char* b) {
    return first_difference(shared(a), shared(b));
  };
  EXPECT_EQ(differ("zero_optimization: {\"stage\": 2}", "zero_optimization: {\"stage\": 3}"),
            "zero_optimization.stage: 2, 3");
  EXPECT_EQ(differ("gradient_clipping: 0.5", "{}"), "gradient_clipping: 0.5, 1.0");
  EXPECT_EQ(differ("optimizer: {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-5}}",
                   "optimizer: {\"type\": \"AdamW\"}"),
            "optimizer.params.lr: 1e-05, 0.001");
  EXPECT_EQ(differ("optimizer: {\"type\": \"AdamW\"}", "optimizer: {\"type\": \"SGD\"}"),
            "optimizer.type: \"AdamW\", \"SGD\"");
  EXPECT_EQ(differ("train_batch_size: 8", "train_batch_size: 16"), "train_batch_size: 8, 16");
  EXPECT_EQ(differ("scheduler: {\"type\": \"WarmupLR\"}",
                   "scheduler: {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 5}}"),
            "scheduler.params.warmup_num_steps: 1000, 5");
}

TEST(SharedValues, AreTheSameHoweverTheFileIsWritten) {
  const char* const one = R"({"gradient_clipping": 1, "fp16": {"enabled": "true"},
      "optimizer": {"type": "adamw", "params": {"lr": "1e-3"}},
      "capstan": {"parameter_groups": {"a": {"parameters": "x", "lr": 1}, "b": {"parameters": "y"}}}})";
  const char* const other = R"({"capstan": {"parameter_groups": {
      "a": {"lr": 1.0, "parameters": ["x"]}, "b": {"parameters": ["y"], "weight_decay": null}}},
      "optimizer": {"params": {"lr": 0.001}, "type": "AdamW"}, "fp16": {"enabled": true}})";
  EXPECT_EQ(first_difference(shared(one), shared(other)), "");
}

TEST(SharedValues, LeaveOutWhatEachRankMayDecideForItself) {
  const char* const talkative = R"({"steps_per_print": 1, "wall_clock_breakdown": true,
      "log_level": "debug", "comms_logger": {"enabled": true}, "capstan": {"timeout_s": 5},
      "zero_optimization": {"reduce_bucket_size": 7, "offload_optimizer": {"nvme_path": "/a",
      "pin_memory": false}}})";
  EXPECT_EQ(first_difference(shared(talkative), shared("{}")), "");
}

TEST(SharedValues, TheOrderOfGroupsCounts) {
  const auto with = [](const std::string& groups) {
    return shared(R"({"optimizer": {"type": "SGD"}, "capstan": {"parameter_groups": {)" + groups +
                  "}}}");
  };
  const std::string a = R"("a": {"parameters": "x", "lr": 1})";
  const std::string b = R"("b": {"parameters": "x", "lr": 2})";
  EXPECT_NE(first_difference(with(a + "," + b), with(b + "," + a)), "");
}

TEST(SharedValues, HoldSectionsBelowANameThatTheFileGives) {
  const auto with = [](int step) {
    return shared(
        R"({"data_efficiency": {"data_sampling": {"curriculum_learning": {"curriculum_metrics":
        {"hard": {"schedule_config": {"difficulty_step": )" +
        std::to_string(step) + "}}}}}}}");
  };
  EXPECT_NE(first_difference(with(1), with(2)), "");
}

TEST(SharedValues, HoldEveryOtherKeyThatIsHonoured) {
  const SharedValues values = shared("{}");
  for (const Section& section : schema().sections()) {
    if (!section.when.empty() || section.path.find('*') != std::string::npos) continue;
    for (const Key& key : section.keys) {
      const std::string path = join_path(section.path, key.name);
      const bool listed =
          std::any_of(values.begin(), values.end(), [&](const auto& v) { return v.first == path; });
      const bool honoured = standing_of(section, key) == Standing::honoured;
      EXPECT_EQ(listed, honoured && !key.per_rank) << path;
      EXPECT_TRUE(honoured || !key.per_rank) << path << " has no effect in any case";
    }
  }
}

}  // namespace
}  // namespace capstan::config

// Rules of users that say how layers are split.
#include "capstan/config/partition_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/json/reader.h"

namespace capstan::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

PartitionRules read(const char* text, std::vector<ErrorInfo>& problems) {
  return read_partition_rules(json::read(text, "rules"), problems);
}

TEST(PartitionRules, SayWhatEachLayerIs) {
  std::vector<ErrorInfo> problems;
  const PartitionRules found = read(
      R"({"use_default_specs": false, "strict_mode": true, "layer_specs": [
          {"patterns": [".*qkv.weight$"], "partition_type": "column", "shape": [3, -1], "partition_dim": 1},
          {"patterns": ["a", "b"], "partition_type": "row", "model_types": ["gpt2"], "partition_dim": 1},
          {"patterns": ["head"], "partition_type": "column", "gather_output": true},
          {"patterns": ["q_norm"], "partition_type": "skip", "grad_allreduce": true}]})",
      problems);
  EXPECT_TRUE(problems.empty());
  EXPECT_FALSE(found.others_by_default);
  EXPECT_TRUE(found.strict);
  ASSERT_EQ(found.rules.size(), 4U);
  EXPECT_EQ(found.rules[0].kind, PartitionKind::column);
  EXPECT_EQ(found.rules[0].blocks, 3);
  EXPECT_THAT(found.rules[1].patterns, ElementsAre("a", "b"));
  EXPECT_THAT(found.rules[1].model_types, ElementsAre("gpt2"));
  EXPECT_TRUE(found.rules[2].gather_output);
  EXPECT_TRUE(found.rules[3].sum_gradients);
  EXPECT_TRUE(read("null", problems).rules.empty() && problems.empty());
}

TEST(PartitionRules, ThatMakeNoSenseAreSaidWithTheirPlace) {
  const auto refused = [](const char* text, const char* what, const char* where) {
    std::vector<ErrorInfo> problems;
    read(text, problems);
    ASSERT_EQ(problems.size(), 1U) << text;
    EXPECT_THAT(problems[0].what, HasSubstr(what)) << text;
    EXPECT_THAT(problems[0].where, HasSubstr(where)) << text;
    EXPECT_FALSE(problems[0].fix.empty()) << text;
  };
  refused("3", "not an object", "partition_config");
  refused(R"({"tp_size": 2})", "said elsewhere", "tp_size");
  refused(R"({"lm_head_patterns": ["x"]})", "not available", "lm_head_patterns");
  refused(R"({"strict_mode": 1})", "neither true nor false", "strict_mode");
  refused(R"({"layer_specs": [{"partition_type": "row"}]})", "no patterns", "layer_specs[0]");
  refused(R"({"layer_specs": [{"patterns": "x"}]})", "no list of texts", "[0].patterns");
  refused(R"({"layer_specs": [{"patterns": ["x"], "partition_type": "col"}]})", "three kinds",
          "[0].partition_type");
  refused(R"({"layer_specs": [{"patterns": ["x"], "partition_type": "row", "partition_dim": 0}]})",
          "dimension 0", "[0].partition_dim");
  refused(R"({"layer_specs": [{"patterns": ["x"], "partition_type": "column",
                               "shape": [[4, 2, 2], -1], "partition_dim": 0}]})",
          "equal matrices", "[0].shape");
  refused(
      R"({"layer_specs": [{"patterns": ["x"], "partition_type": "row", "gather_output": true}]})",
      "for columns", "[0]");
  refused(R"({"layer_specs": [{"patterns": ["x"], "partition_type": "row", "shap": []}]})",
          "no such key", "[0].shap");
}

}  // namespace
}  // namespace capstan::config

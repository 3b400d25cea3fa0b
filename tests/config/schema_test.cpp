#include "capstan/config/schema.h"

#include <algorithm>
#include <array>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/text.h"
#include "capstan/config/convert.h"
#include "capstan/config/docs.h"
#include "capstan/config/json_schema.h"
#include "capstan/config/option_names.h"
#include "capstan/json/writer.h"
#include "support.h"

namespace capstan::config {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string quoted(const std::string& text) { return fmt::format("\"{}\"", text); }

TEST(Schema, KnowsEveryKeyThatUsersOfUpstreamHave) {
  std::istringstream lines(read_source_file("tests/config/known_keys.txt"));
  int count = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    ++count;
    const std::vector<std::string> parts = split(line, ' ');
    std::vector<Setting> settings = {{line, "null"}};
    if (parts.size() == 3) {
      settings = {{parts[0] + ".type", quoted(parts[1])},
                  {parts[0] + ".params." + parts[2], "\"auto\""}};
    }
    EXPECT_THAT(problems_of(text_of(settings)), Not(HasSubstr("unknown key"))) << line;
  }
  EXPECT_GT(count, 480);
}

TEST(Schema, SaysForEveryKeyWhatItMeansAndWhatItCosts) {
  for (const Section& section : schema().sections()) {
    EXPECT_NE(section.meaning, "") << section.path;
    for (const Key& key : section.keys) {
      const std::string path = join_path(section.path, key.name);
      EXPECT_NE(key.meaning, "") << path;
      const Standing standing = standing_of(section, key);
      if (standing == Standing::honoured) {
        EXPECT_NE(key.consequence, "") << path;
      } else {
        EXPECT_NE(standing_reason_of(section, key), "") << path;
      }
    }
  }
}

TEST(Schema, NamesAreUniqueAndDefaultsFitTheirOwnType) {
  std::set<std::string> seen;
  for (const Section& section : schema().sections()) {
    for (const Key& key : section.keys) {
      std::vector<std::string> names = {key.name};
      names.insert(names.end(), key.aliases.begin(), key.aliases.end());
      names.insert(names.end(), key.deprecated.begin(), key.deprecated.end());
      for (const std::string& name : names) {
        const std::string type = section.when.empty() ? "" : section.when.front();
        EXPECT_TRUE(seen.insert(join_path(section.path, name) + " " + type).second) << name;
      }
      EXPECT_NO_THROW(default_value(key)) << join_path(section.path, key.name);
    }
  }
}

// A value of the key's type other than its default, as JSON text; empty: there is none to try.
std::string another_value(const Key& key) {
  const json::Value standard = default_value(key);
  std::vector<std::string> candidates = {"2",     "3",      "0.5",         "0",      "5000",
                                         "70000", "[4, 6]", "[0.5, 0.25]", "[\"x\"]"};
  if (key.type == Type::flag) candidates = {"true", "false"};
  if (key.name == "arg_mappings") candidates = {"{\"optimizer.params.lr\": \"--lr\"}"};
  if (key.type == Type::text) candidates = {quoted("x")};
  for (const std::string& choice : key.choices) {
    if (choice != "critical") candidates.push_back(quoted(choice));
  }
  for (const std::string& text : candidates) {
    const json::Value value = json::read(text, "candidate");
    if (value.text() == nullptr && key.type == Type::text) continue;
    const Converted converted = convert(key, value);
    if (!converted.problem.empty() || converted.value == standard) continue;
    const bool later =
        std::any_of(key.value_needs.begin(), key.value_needs.end(), [&](const ValueNeed& need) {
          return converted.value == json::Value(need.value) && !available(need.feature);
        });
    // fp32 is what a dtype is without the key.
    if (!later && text != "\"fp32\"" && text != "\"float32\"" && text != "\"float\"") return text;
  }
  return "";
}

// What else must be set for a key to be read.
std::vector<Setting> surroundings(const Section& section, const Key& key) {
  std::vector<Setting> settings;
  if (!section.when.empty()) {
    const std::string above = section.path.substr(0, section.path.find('.'));
    settings.push_back({above + ".type", quoted(section.when.front())});
    for (const Key& other : section.keys) {
      const std::string value = other.name == "cycle_min_lr" ? "1" : "7";
      if (other.required) settings.push_back({section.path + "." + other.name, value});
    }
  }
  if (key.name.starts_with("fp16_") || key.name == "auto_cast" || section.path == "capstan")
    settings.push_back({"fp16.enabled", "true"});
  if (key.name.starts_with("bf16_")) settings.push_back({"bf16.enabled", "true"});
  if (key.name == "bf16_optimizer_states") {
    settings.push_back({"bf16.bf16_master_weights_and_grads", "true"});
  }
  if (key.name.starts_with("cpu_offload")) settings.push_back({"zero_optimization.stage", "3"});
  if (key.name == "cpuadam_cores_perc")
    settings.push_back({section.path + ".super_offload", "true"});
  if (key.name == "nesterov") settings.push_back({"optimizer.params.momentum", "0.9"});
  if (key.name.starts_with("seq_parallel_")) settings.push_back({"sequence_parallel_size", "2"});
  if (key.name == "enabled" && section.path == "autotuning")
    settings.push_back({"autotuning.metric_path", quoted("x")});
  if (key.name == "metric_path") settings.push_back({"autotuning.enabled", "true"});
  if (key.name == "end_profile_step") settings.push_back({"autotuning.start_profile_step", "1"});
  if (key.name != "enabled" &&
      (section.path.starts_with("curriculum_learning") || key.name == "curriculum_cut")) {
    settings.push_back({"curriculum_learning.enabled", "true"});
  }
  if (key.name != "enabled" && section.path == "progressive_layer_drop") {
    settings.push_back({"progressive_layer_drop.enabled", "true"});
  }
  if (key.name == "gradient_accumulation_steps") settings.push_back({"train_batch_size", "8"});
  return settings;
}

TEST(Schema, EveryHonouredKeyChangesTheOptions) {
  int count = 0;
  for (const Section& section : schema().sections()) {
    if (section.path.find('*') != std::string::npos) continue;
    for (const Key& key : section.keys) {
      if (standing_of(section, key) != Standing::honoured) continue;
      // The packages read these from the table themselves; tests/python looks at their effect.
      const auto feature = key.feature.has_value() ? key.feature : section.feature;
      const bool packages = feature.has_value() && only_door(*feature).has_value();
      if (!key.acts_for(Door::program) || packages) continue;
      if (key.type == Type::passed) continue;
      if (!key.value_needs.empty() && key.type == Type::choice && key.name == "device") continue;
      const std::string path = join_path(section.path, key.name);
      std::vector<Setting> settings = surroundings(section, key);
      std::string value = another_value(key);
      ASSERT_NE(value, "") << path;
      const std::string before = text_of(settings);
      settings.push_back({path, value});
      const std::string after = text_of(settings);
      ASSERT_EQ(problems_of(before), "") << path;
      ASSERT_EQ(problems_of(after), "") << path << "\n" << after;
      const Resolved a = resolve_text(before);
      const Resolved b = resolve_text(after);
      EXPECT_TRUE(!(a.engine == b.engine) || !(a.data == b.data) || !(a.tune == b.tune) ||
                  a.curriculum != b.curriculum || a.layer_drop != b.layer_drop)
          << path << " = " << value;
      ++count;
    }
  }
  EXPECT_GT(count, 110);
}

TEST(Schema, DefaultsAreThoseOfTheOptionsStructs) {
  const Resolved resolved = resolve_text("{}");
  EXPECT_EQ(resolved.data, data::Options{});
  EXPECT_EQ(resolved.tune, tune::Options{});
  engine::Options expected;
  // Upstream counts elements of the parameters' dtype; the structs' defaults are for 16 bits.
  expected.shard.prefetch_bytes *= 2;
  expected.shard.max_live_bytes *= 2;
  expected.shard.max_reuse_bytes *= 2;
  expected.store.params.buffer_bytes *= 2;
  expected.names = expected.shard.names = option_names();
  EXPECT_EQ(resolved.engine, expected);
  engine::Options half = resolve_text("bf16: {\"enabled\": true}").engine;
  half.precision.params = DType::fp32;
  half.names = half.shard.names = {};
  EXPECT_EQ(half, engine::Options{});
}

TEST(Schema, KnowsEveryKeyThatMessagesOfTheEngineName) {
  std::vector<std::string> known;
  for (const Section& section : schema().sections()) {
    known.push_back(section.path);
    for (const Key& key : section.keys) known.push_back(join_path(section.path, key.name));
  }
  // A value, and advice for a reader: no keys.
  const std::array others = {std::string("host"), std::string("precision.params")};
  for (const auto& [field, names] : option_names().of_fields) {
    if (std::ranges::find(others, field) != others.end()) continue;
    for (const std::string& name : split(names, ',')) {
      const std::string wanted = "." + std::string(trim(name));
      const auto is_it = [&](const std::string& key) { return ("." + key).ends_with(wanted); };
      EXPECT_TRUE(std::any_of(known.begin(), known.end(), is_it)) << field << ": " << name;
    }
  }
}

TEST(Schema, TheJsonSchemaKnowsSectionsChoicesAndRanges) {
  const json::Value document = json::read(json::write(json_schema(schema())), "schema");
  const json::Value* zero = document.find("properties")->find("zero_optimization");
  const json::Value* stage = zero->find("properties")->find("stage");
  EXPECT_EQ(*(*stage->find("anyOf")->array())[0].find("maximum")->real(), 3.0);
  EXPECT_NE(zero->find("properties")->find("offload_optimizer")->find("properties")->find("device"),
            nullptr);
  EXPECT_FALSE(*document.find("additionalProperties")->boolean());
  EXPECT_NE(document.find("properties")
                ->find("compression_training")
                ->find("properties")
                ->find("row_pruning")
                ->find("properties")
                ->find("different_groups")
                ->find("additionalProperties")
                ->find("properties"),
            nullptr);
}

TEST(Docs, TheReferencePageIsCurrent) {
  EXPECT_TRUE(read_source_file("docs/config.md") == markdown(schema()))
      << "docs/config.md is not what the schema says; run: capstan config docs > docs/config.md";
}

}  // namespace
}  // namespace capstan::config

#include "capstan/config/lone_section.h"

#include <gtest/gtest.h>

#include "support.h"

namespace capstan::config {
namespace {

TEST(LoneSection, OverlapsAtStageThreeOnly) {
  for (const int stage : {0, 1, 2, 3}) {
    EXPECT_EQ(lone_defaults("zero_optimization", stage).at("overlap_comm"),
              json::Value(stage == 3));
  }
}

TEST(LoneSection, NamesOnlyKeysWhoseValueDiffers) {
  const Resolved resolved = resolve_text("{}");
  for (const char* const section : {"zero_optimization", "zero_optimization.offload_param",
                                    "zero_optimization.offload_optimizer", "bf16", "fp16"}) {
    for (const auto& [key, value] : lone_defaults(section, 0)) {
      const Entry* const entry = resolved.table.find(join_path(section, key));
      ASSERT_NE(entry, nullptr) << key;
      EXPECT_NE(entry->value, value) << key;
    }
  }
}

}  // namespace
}  // namespace capstan::config

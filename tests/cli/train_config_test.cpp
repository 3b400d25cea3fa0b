#include "capstan/cli/train/config.h"

#include <gtest/gtest.h>

namespace capstan::cli::train {
namespace {

DType trains_in(const std::string& config) {
  Arguments arguments;
  arguments.config = config;
  return training_config(arguments, {.count = 1, .on_gpus = true}).engine.precision.params;
}

std::string with(const std::string& precision) {
  return R"({"train_batch_size": 2, "optimizer": {"type": "AdamW"}, )" + precision + "}";
}

TEST(TrainingConfig, FillsInBf16UnlessTheFileAsksForFp16HoweverItSpellsThat) {
  const std::string bf16 = R"("bf16": {"enabled": "auto"})";
  EXPECT_EQ(trains_in(""), DType::bf16);
  EXPECT_EQ(trains_in(with(bf16)), DType::bf16);
  EXPECT_EQ(trains_in(with(bf16 + R"(, "fp16": {"enabled": "auto"})")), DType::bf16);
  EXPECT_EQ(trains_in(with(R"("bf16": {"enabled": false})")), DType::fp32);
  for (const std::string enabled : {"true", "1", R"("true")"}) {
    EXPECT_EQ(trains_in(with(bf16 + R"(, "fp16": {"enabled": )" + enabled + "}")), DType::fp16);
  }
}

}  // namespace
}  // namespace capstan::cli::train

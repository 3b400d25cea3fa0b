#include "capstan/models/attention_choice.h"

#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <gtest/gtest.h>

namespace capstan::models {
namespace {

TEST(AttentionChoice, TrainsWithCudnnAndLeavesNoTextOfGrowingLengthToIt) {
  const auto cudnn = static_cast<std::int64_t>(at::SDPBackend::cudnn_attention);
  prefer_cudnn_attention();
  EXPECT_EQ(static_cast<std::int64_t>(at::globalContext().sDPPriorityOrder().front()), cudnn);
  avoid_cudnn_attention();
  EXPECT_EQ(static_cast<std::int64_t>(at::globalContext().sDPPriorityOrder()[3]), cudnn);
}

}  // namespace
}  // namespace capstan::models

#include "capstan/precision/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"

namespace capstan::precision {
namespace {

using testing::HasSubstr;

TEST(DtypeTable, ShowsEveryDtypeTheLossScaleAndTheMesh) {
  const Options options = {.params = DType::fp16, .buffers = DType::fp32};
  EXPECT_EQ(dtype_table(options),
            "precision               dtype bytes per element\n"
            "parameters              fp16  2\n"
            "gradients on the wire   fp16  2\n"
            "gradient shards         fp32  4\n"
            "master                  fp32  4\n"
            "optimizer state         fp32  4\n"
            "buffers                 fp32  4\n"
            "loss scale              dynamic from 65536, doubled after 1000 clean steps, "
            "hysteresis 2, minimum 1\n");
}

TEST(DtypeTable, FollowsExplicitChoices) {
  const Options options = {.params = DType::bf16,
                           .grad_accum = DType::bf16,
                           .reduce = DType::fp32,
                           .master = DType::bf16,
                           .optimizer_state = DType::bf16};
  const std::string text = dtype_table(options);
  EXPECT_THAT(text, HasSubstr("gradients on the wire   fp32  4\n"));
  EXPECT_THAT(text, HasSubstr("gradient shards         bf16  2\n"));
  EXPECT_THAT(text, HasSubstr("master                  bf16  2\n"));
  EXPECT_THAT(text, HasSubstr("optimizer state         bf16  2\n"));
  EXPECT_THAT(text, HasSubstr("buffers                 as they are\n"));
  EXPECT_THAT(text, HasSubstr("loss scale              none\n"));
  EXPECT_THAT(dtype_table({.params = DType::fp16, .loss_scale = {.static_scale = 128}}),
              HasSubstr("fixed at 128"));
}

TEST(Check, AcceptsEveryRowOfThePrecisionTable) {
  for (const DType params : {DType::fp32, DType::fp16, DType::bf16}) {
    for (const DType state : {DType::fp32, params}) {
      for (const DType grads : {DType::fp32, params}) {
        check({.params = params, .grad_accum = grads, .master = params, .optimizer_state = state});
        check({.params = params, .grad_accum = grads, .optimizer_state = state});
      }
    }
  }
}

TEST(Check, ListsEverythingThatCannotWork) {
  try {
    check({.params = DType::fp16,
           .master = DType::bf16,
           .max_skipped_in_a_row = -1,
           .loss_scale = {.window_steps = 0, .hysteresis = 0, .min_scale = 0}});
    FAIL() << "bad values were accepted";
  } catch (const ConfigError& error) {
    for (const char* part : {"master is bf16", "max_skipped_in_a_row is -1", "window_steps is 0",
                             "hysteresis is 0", "min_scale is 0"}) {
      EXPECT_THAT(error.info().what, HasSubstr(part));
    }
  }
  EXPECT_THROW(check({.params = DType::fp16, .loss_scale = {.static_scale = -1}}), ConfigError);
  // Without fp16 the loss scale is not used.
  check({.params = DType::bf16, .loss_scale = {.window_steps = 0}});
}

}  // namespace
}  // namespace capstan::precision

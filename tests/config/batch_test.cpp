#include "capstan/config/batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/config/explain.h"
#include "support.h"

namespace capstan::config {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct BatchCase {
  const char* text;
  int ranks;
  std::int64_t train;
  std::int64_t micro;
  std::int64_t accumulation;
};

class CompletesBatch : public ::testing::TestWithParam<BatchCase> {};

TEST_P(CompletesBatch, FromWhatIsGiven) {
  const BatchCase& expected = GetParam();
  const engine::BatchOptions batch =
      resolve_text(expected.text, ranks(expected.ranks)).engine.batch;
  EXPECT_EQ(batch.train_samples, expected.train);
  EXPECT_EQ(batch.micro_samples, expected.micro);
  EXPECT_EQ(batch.accumulation_steps, expected.accumulation);
}

INSTANTIATE_TEST_SUITE_P(
    Table, CompletesBatch,
    ::testing::Values(
        BatchCase{"train_batch_size: 32", 4, 32, 8, 1},
        BatchCase{"train_micro_batch_size_per_gpu: 4", 4, 16, 4, 1},
        BatchCase{"train_batch_size: 64\ntrain_micro_batch_size_per_gpu: 4", 4, 64, 4, 4},
        BatchCase{"train_batch_size: 64\ngradient_accumulation_steps: 2", 4, 64, 8, 2},
        BatchCase{"train_micro_batch_size_per_gpu: 2\ngradient_accumulation_steps: 3", 4, 24, 2, 3},
        BatchCase{"gradient_accumulation_steps: 2", 4, 8, 1, 2}, BatchCase{"{}", 4, 4, 1, 1},
        BatchCase{"{}", 1, 1, 1, 1},
        BatchCase{"train_batch_size: null\ntrain_micro_batch_size_per_gpu: auto", 3, 3, 1, 1},
        BatchCase{"train_batch_size: 64\ntrain_micro_batch_size_per_gpu: 4\n"
                  "gradient_accumulation_steps: 4",
                  4, 64, 4, 4}));

TEST(Batch, AConflictPrintsTheEquationWithEachOrigin) {
  const std::string problems = problems_of(
      "{\"train_batch_size\": 96,\n\"train_micro_batch_size_per_gpu\": 8,\n"
      "\"gradient_accumulation_steps\": 3}",
      ranks(8));
  EXPECT_THAT(problems,
              HasSubstr("train_batch_size is 96, but 8 (micro-batch) x 3 (accumulation) x 8 "
                        "(data-parallel ranks) = 192"));
  EXPECT_THAT(problems, HasSubstr("train_batch_size = 96 (ds.json:1:22)"));
  EXPECT_THAT(problems, HasSubstr("train_micro_batch_size_per_gpu = 8 (ds.json:2:35)"));
  EXPECT_THAT(problems, HasSubstr("gradient_accumulation_steps = 3 (ds.json:3:32)"));
  EXPECT_THAT(problems, HasSubstr("data-parallel ranks = 8 (command line: -n 8)"));
}

TEST(Batch, ATrainBatchThatDoesNotDivideSaysWhichOnesDo) {
  EXPECT_THAT(problems_of("train_batch_size: 33\ntrain_micro_batch_size_per_gpu: 4", ranks(4)),
              HasSubstr("multiple of 16, such as 32"));
  EXPECT_THAT(problems_of("train_batch_size: 3", ranks(4)), HasSubstr("multiple of 4, such as 4"));
}

TEST(Batch, RanksThatShareSequencesCountOnce) {
  const char* const text =
      "train_batch_size: 16\ntrain_micro_batch_size_per_gpu: 2\nsequence_parallel_size: 4";
  const Resolved resolved = resolve_text(text, ranks(8));
  EXPECT_EQ(resolved.engine.mesh.sequence, 4);
  EXPECT_EQ(resolved.engine.batch.accumulation_steps, 4);
  EXPECT_EQ(resolved.world_size, 2);
  EXPECT_EQ(describe(resolved.world_size_origin), "derived: 8 ranks / 4 (sequence_parallel_size)");
  EXPECT_EQ(describe(resolved.table.find("gradient_accumulation_steps")->origin),
            "derived: 16 / (2 x 2)");
  EXPECT_THAT(explain(resolved),
              HasSubstr("data-parallel ranks: 2 (derived: 8 ranks / 4 (sequence_parallel_size))"));
  EXPECT_EQ(resolve_text("train_batch_size: 16", ranks(8)).world_size, 8);
}

TEST(Batch, RanksThatCannotShareSequencesEquallyAreRefused) {
  EXPECT_THAT(
      problems_of("sequence_parallel_size: 4", ranks(6)),
      HasSubstr("6 ranks (command line: -n 6) cannot form groups of 4 (sequence_parallel_size)"));
  EXPECT_THAT(problems_of("sequence_parallel_size: 4", ranks(2)),
              HasSubstr("2 ranks (command line: -n 2) cannot form groups"));
}

TEST(Batch, TheDataParallelSizeIsCheckedAgainstWhatResults) {
  EXPECT_EQ(problems_of("sequence_parallel_size: 4\ndata_parallel_size: 2", ranks(8)), "");
  EXPECT_THAT(
      problems_of("sequence_parallel_size: 4\ndata_parallel_size: 8", ranks(8)),
      HasSubstr(
          "data_parallel_size is 8, but the run has 2 data-parallel ranks (derived: 8 ranks / 4 "
          "(sequence_parallel_size))"));
}

TEST(Batch, GradientsOfSharedSequencesTravelInADtypeOfTheirOwn) {
  const auto dtype = [](const std::string& more) {
    return resolve_text("bf16: {\"enabled\": true}\n" + more, ranks(4))
        .engine.precision.reduce_dtype();
  };
  EXPECT_EQ(dtype("seq_parallel_communication_data_type: fp16"), DType::bf16);
  EXPECT_EQ(dtype("sequence_parallel_size: 2"), DType::fp32);
  EXPECT_EQ(dtype("sequence_parallel_size: 2\nseq_parallel_communication_data_type: bf16"),
            DType::bf16);
  EXPECT_EQ(dtype("sequence_parallel_size: 2\nseq_parallel_communication_data_type: null\n"
                  "communication_data_type: fp16"),
            DType::fp16);
}

TEST(Batch, TheProgramRefusesToShareSequences) {
  Context program = ranks(2);
  program.door = Door::program;
  EXPECT_THAT(problems_of("sequence_parallel_size: 2", program),
              HasSubstr("only in the Python packages"));
  for (const Door door : {Door::capstan_package, Door::deepspeed_package}) {
    Context package = ranks(2);
    package.door = door;
    EXPECT_EQ(problems_of("sequence_parallel_size: 2", package), "");
  }
}

TEST(Batch, ThreeGivenSizesTellTheNumberOfRanksWhenNobodyElseDoes) {
  const Resolved resolved = resolve_text(
      "train_batch_size: 64\ntrain_micro_batch_size_per_gpu: 4\ngradient_accumulation_steps: 2");
  EXPECT_EQ(resolved.world_size, 8);
  EXPECT_EQ(describe(resolved.world_size_origin), "derived: 64 / (4 x 2)");
  EXPECT_EQ(resolve_text("train_batch_size: 64").world_size, 1);
}

TEST(Batch, HugeNumbersAreAProblemAndNoOverflow) {
  const std::string huge = "9223372036854775807";
  const std::string product =
      problems_of("train_micro_batch_size_per_gpu: " + huge + "\ngradient_accumulation_steps: 2");
  EXPECT_THAT(product, HasSubstr("the batch is too large"));
  EXPECT_THAT(product, Not(HasSubstr("(default)")));  // of a train_batch_size that nobody gave
  EXPECT_NE(problems_of("train_batch_size: 3\ntrain_micro_batch_size_per_gpu: " + huge, ranks(8)),
            "");
  EXPECT_NE(problems_of("train_batch_size: 3\ntrain_micro_batch_size_per_gpu: " + huge +
                            "\ngradient_accumulation_steps: " + huge,
                        ranks(8)),
            "");
}

TEST(Batch, WhoTrainsIsToldThatASizeIsMissingOrStillAuto) {
  Context trains = ranks(2);
  trains.trains = true;
  for (const char* text : {"{}", "gradient_accumulation_steps: 4", "train_batch_size: null"}) {
    EXPECT_THAT(problems_of(text, trains), HasSubstr("the batch size is missing")) << text;
    EXPECT_EQ(problems_of(text, ranks(2)), "") << text;
  }
  const char* const automatic =
      "{\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\"}";
  EXPECT_EQ(resolve_text(automatic, trains).engine.batch.micro_samples, 1);
  EXPECT_THAT(warnings_of(automatic, trains), HasSubstr("only the Trainer and Accelerate fill in"));
  EXPECT_EQ(warnings_of(automatic, ranks(2)), "");  // whoever uses it may fill it in
  EXPECT_EQ(check_text("train_batch_size: 16.5", trains).problems.size(), 1U);  // not missing
  for (const char* text : {"train_batch_size: 4", "train_micro_batch_size_per_gpu: 4"}) {
    EXPECT_EQ(problems_of(text, trains), "") << text;
  }
}

TEST(Batch, ADerivedValueSaysHow) {
  const Resolved resolved =
      resolve_text("train_batch_size: 64\ngradient_accumulation_steps: 2", ranks(4));
  EXPECT_EQ(describe(resolved.table.find("train_micro_batch_size_per_gpu")->origin),
            "derived: 64 / (2 x 4)");
}

}  // namespace
}  // namespace capstan::config

// A checkpoint of a pipeline is one of the model: saved at any number of stages, loaded at any
// other.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/checkpoint/deepspeed/import.h"
#include "tests/engine/chain_stages.h"
#include "tests/support/temp_folder.h"

namespace capstan::test {
namespace {

using testing::HasSubstr;

constexpr int kBlocks = 6;
constexpr int kMicroBatches = 3;
constexpr int kBefore = 2;  // steps before the save

// Without clipping: the norm's last bit depends on the number of stages.
engine::Options chain_options(int zero, DType dtype = DType::fp32) {
  engine::Options options = options_of(zero, kMicroBatches, dtype);
  options.gradient_clipping = 0;
  return options;
}

struct AllBlocks final : SeededStage {
  AllBlocks(Engine& engine, const Shape& shape, Chain& model, int data_rank)
      : SeededStage(engine, shape, data_rank), model(model) {}
  Tensors forward(int, const Tensors& inputs) override {
    at::Tensor x = inputs[0];
    for (auto& block : model->blocks) x = block(x);
    return {x};
  }
  Chain& model;
};

// Steps begin..end of a run on `stages` x kData ranks, from the checkpoint in `from` if there is
// one, saved to `to` at the end.
Result run(const engine::Options& given, int stages, std::pair<int, int> steps,
           const std::filesystem::path& from, const std::filesystem::path& to) {
  engine::Options options = given;
  options.mesh.pipe = stages;
  ThreadMeetings meetings;
  Result result;
  std::mutex mutex;
  run_ranks(stages * kData, [&](comm::Group& group) {
    ThreadGroups maker(meetings, group.rank());
    const int stage_number = group.rank() / kData;
    const int data_rank = group.rank() % kData;
    std::vector<int> mine;
    for (int i = 0; i < kBlocks / stages; ++i) mine.push_back(stage_number * kBlocks / stages + i);
    Chain model(mine);
    Engine engine(model, options, {.group = {group, maker}});
    if (!from.empty()) {
      const auto loaded = engine.load_checkpoint(from);
      ASSERT_TRUE(loaded.has_value());
      EXPECT_EQ(engine.progress().steps, steps.first);
    }
    const Shape shape = {.stages = stages, .micro_batches = kMicroBatches};
    AllBlocks part(engine, shape, model, data_rank);
    part.now = steps.first;
    pipeline::Executor executor(make_schedule(Kind::one_f_one_b, shape),
                                engine.mesh().over(layout::Axis::pipe), part, at::kCPU);
    for (; part.now < steps.second; ++part.now) executor.run();
    if (!to.empty()) engine.save_checkpoint(to);
    Result all;
    add_masters(engine, all);
    if (data_rank != 0) return;
    const std::lock_guard lock(mutex);
    result.masters.merge(all.masters);
  });
  return result;
}

void expect_equal(const Result& actual, const Result& expected, const std::string& what) {
  ASSERT_EQ(actual.masters.size(), expected.masters.size()) << what;
  for (const auto& [name, value] : expected.masters) {
    EXPECT_TRUE(at::equal(actual.masters.at(name), value)) << what << ": " << name;
  }
}

TEST(PipelineCheckpoint, SavedAtAnyNumberOfStagesGoesOnAtAnyOther) {
  for (const int zero : {0, 1, 2}) {
    const engine::Options options = chain_options(zero, zero == 1 ? DType::bf16 : DType::fp32);
    const Result expected = run(options, 1, {0, kSteps}, {}, {});
    for (const int saved : {1, 2, 3}) {
      const TempFolder folder;
      run(options, saved, {0, kBefore}, {}, folder.path());
      for (const int loaded : {1, 2, 3}) {
        expect_equal(run(options, loaded, {kBefore, kSteps}, folder.path(), {}), expected,
                     fmt::format("stage {}, saved at {} and loaded at {}", zero, saved, loaded));
      }
    }
  }
}

TEST(PipelineCheckpoint, HasTheTensorsAndGroupsOfAllStages) {
  engine::Options options = chain_options(1);
  const TempFolder piped;
  const TempFolder whole;
  run(options, 3, {0, 1}, {}, piped.path());
  run(options, 1, {0, 1}, {}, whole.path());
  const checkpoint::Reader actual = checkpoint::open_reader(piped.path() / "global_step1");
  const checkpoint::Reader expected = checkpoint::open_reader(whole.path() / "global_step1");
  const auto names = [](const checkpoint::Reader& reader, const char* column) {
    std::vector<std::string> all;
    for (const auto& tensor : reader.index().find(column)->tensors) all.push_back(tensor.spec.name);
    return all;
  };
  EXPECT_EQ(names(actual, checkpoint::kModelColumn), names(expected, checkpoint::kModelColumn));
  EXPECT_EQ(actual.index().state.param_groups, expected.index().state.param_groups);
}

TEST(PipelineCheckpoint, ATensorThatNoStageHasIsNamed) {
  const TempFolder folder;
  run(chain_options(1), 1, {0, 1}, {}, folder.path());
  // Two stages that leave the last blocks out.
  engine::Options options = chain_options(1);
  options.mesh.pipe = 2;
  ThreadMeetings meetings;
  try {
    run_ranks(2, [&](comm::Group& group) {
      ThreadGroups maker(meetings, group.rank());
      Chain model(std::vector<int>{2 * group.rank(), 2 * group.rank() + 1});
      Engine engine(model, options, {.group = {group, maker}});
      engine.load_checkpoint(folder.path());
    });
    FAIL() << "blocks 4 and 5 are lost";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'block4."));
    EXPECT_THAT(error.what(), Not(HasSubstr("'block1.")));
  }
}

}  // namespace
}  // namespace capstan::test

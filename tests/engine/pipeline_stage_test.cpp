// Stages of a pipeline with an engine each: the bits of one engine that has the whole model.
#include "capstan/engine/pipeline_stage.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "tests/engine/chain_stages.h"

namespace capstan::test {
namespace {

using testing::HasSubstr;

void expect_same(const Result& actual, const Result& expected, const std::string& what) {
  ASSERT_EQ(actual.masters.size(), expected.masters.size()) << what;
  for (const auto& [name, value] : expected.masters) {
    EXPECT_TRUE(at::equal(actual.masters.at(name), value)) << what << ": " << name;
  }
  ASSERT_EQ(actual.reports.size(), expected.reports.size()) << what;
  for (std::size_t i = 0; i < expected.reports.size(); ++i) {
    EXPECT_EQ(actual.reports[i].applied, expected.reports[i].applied) << what << ", step " << i;
    EXPECT_EQ(actual.reports[i].loss_scale, expected.reports[i].loss_scale) << what;
    if (!expected.reports[i].applied) continue;
    EXPECT_NEAR(actual.reports[i].grad_norm, expected.reports[i].grad_norm,
                1e-12 * expected.reports[i].grad_norm)
        << what << ", step " << i;
  }
}

TEST(PipelineStage, EveryZeroStageAndScheduleGivesTheBitsOfOneEngine) {
  for (const int zero : {0, 1, 2, 3}) {
    const engine::Options options = options_of(zero, 4);
    const Result two = whole_model(options, 2);
    ASSERT_GT(two.reports.back().grad_norm, options.gradient_clipping);
    for (const Kind kind : {Kind::gpipe, Kind::one_f_one_b, Kind::zb_h1, Kind::deepspeed}) {
      expect_same(pipelined(options, kind, {.stages = 2, .micro_batches = 4}), two,
                  "stage " + std::to_string(zero) + ", " + std::string(to_string(kind)));
    }
    expect_same(
        pipelined(options, Kind::interleaved, {.stages = 2, .micro_batches = 4, .chunks = 2}),
        whole_model(options, 4), "stage " + std::to_string(zero) + ", interleaved");
  }
}

TEST(PipelineStage, OffloadedLateAndEarlyUpdatesToo) {
  for (const int zero : {1, 2, 3}) {
    for (const auto early : {store::EarlyUpdates::never, store::EarlyUpdates::always}) {
      engine::Options options = options_of(zero, 3);
      options.store.optimizer.placement = store::Placement::host;
      if (zero > 0) options.store.optimizer.early_updates = early;
      expect_same(pipelined(options, Kind::one_f_one_b, {.stages = 3, .micro_batches = 3}),
                  whole_model(options, 3), "stage " + std::to_string(zero));
    }
  }
}

TEST(PipelineStage, SixteenBitsToo) {
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (const int zero : {1, 2}) {
      const engine::Options options = options_of(zero, 3, dtype);
      expect_same(pipelined(options, Kind::one_f_one_b, {.stages = 2, .micro_batches = 3}),
                  whole_model(options, 2), std::string(name(dtype)));
    }
  }
}

// Of one data-parallel rank, the first stage gets no gradient for one micro-batch, or for any: its
// peers sum theirs with zeros.
TEST(PipelineStage, AMicroBatchWithoutGradientsIsZeros) {
  for (const bool all : {false, true}) {
    const auto is_cut = [all](int data_rank, int micro_batch) {
      return data_rank == 1 && (all || micro_batch == 1);
    };
    for (const int zero : {0, 1, 2}) {
      engine::Options options = options_of(zero, 3);
      if (zero > 0) options.store.optimizer.placement = store::Placement::host;
      options.store.optimizer.early_updates = store::EarlyUpdates::always;
      Result whole;
      run_ranks(kData, [&](comm::Group& group) {
        Chain model(std::vector<int>{0, 1});
        Engine engine(model, options, {.group = &group});
        for (int i = 0; i < 3; ++i) {
          const std::uint64_t seed = seed_of(0, i, group.rank());
          at::Tensor x = model->blocks[0](input_of(seed, at::kFloat));
          if (is_cut(group.rank(), i)) x = x.detach();
          engine.backward(loss_of_output(model->blocks[1](x), seed));
          const engine::StepReport report = engine.step();
          if (report.boundary && group.rank() == 0) whole.reports.push_back(report);
        }
        Result mine;
        add_masters(engine, mine);
        if (group.rank() == 0) whole.masters = std::move(mine.masters);
      });
      std::mutex mutex;
      Result cut;
      const Shape shape = {.stages = 2, .micro_batches = 3};
      for (const Kind kind : {Kind::one_f_one_b, Kind::zb_h1}) {
        cut = {};
        on_mesh(options, shape,
                [&](Engine& engine, ChainStage& stage, comm::Group& pipe, int data) {
                  int micro_batch = 0;
                  if (pipe.rank() == 1) {
                    stage.taken = [&](const at::Tensor& x) {
                      return is_cut(data, micro_batch++) ? x.detach() : x;
                    };
                  }
                  pipeline::Executor executor(make_schedule(kind, shape), pipe, stage, at::kCPU);
                  executor.run();
                  Result mine;
                  add_masters(engine, mine);
                  const std::lock_guard lock(mutex);
                  cut.masters.merge(mine.masters);
                  if (cut.reports.empty()) cut.reports.push_back(stage.last_step());
                });
        expect_same(cut, whole, "stage " + std::to_string(zero));
      }
    }
  }
}

// A scale that is too large at first: whichever stage overflows, all skip the step.
TEST(PipelineStage, AllSkipAStepThatOneCannotTake) {
  engine::Options options = options_of(1, 2, DType::fp16);
  options.precision.loss_scale.initial_scale_power = 19;
  options.precision.loss_scale.hysteresis = 1;
  const Result expected = whole_model(options, 3);
  EXPECT_FALSE(expected.reports.front().applied);
  EXPECT_TRUE(expected.reports.back().applied);
  expect_same(pipelined(options, Kind::one_f_one_b, {.stages = 3, .micro_batches = 2}), expected,
              "overflow");
}

// In fp16, and as a scale that is too large for one.
class HalfLossStage final : public engine::PipelineStage {
 public:
  HalfLossStage(Engine& engine, Chain& model, const Shape& shape)
      : PipelineStage(engine, shape), model_(model) {}
  Tensors inputs(int micro_batch) override {
    return {input_of(static_cast<std::uint64_t>(micro_batch), at::kHalf)};
  }
  Tensors labels(int) override { return {}; }
  Tensors forward(int, const Tensors& inputs) override { return {model_->blocks[0](inputs[0])}; }
  at::Tensor loss(const Tensors& outputs, const Tensors&) override {
    return outputs[0].square().mean();
  }

 private:
  Chain& model_;
};

TEST(PipelineStage, ALossInFp16HasTheBitsOfOneEngine) {
  engine::Options options = options_of(1, 1, DType::fp16);
  options.precision.loss_scale.initial_scale_power = 18;  // fp16 ends below 2^16
  options.precision.loss_scale.hysteresis = 1;
  std::map<std::string, at::Tensor> expected;
  run_ranks(kData, [&](comm::Group& group) {
    Chain model(std::vector<int>{0, 1});
    Engine engine(model, options, {.group = &group});
    for (int step = 0; step < kSteps; ++step) {
      at::Tensor x = input_of(0, at::kHalf);
      for (auto& block : model->blocks) x = block(x);
      engine.backward(x.square().mean());
      EXPECT_TRUE(engine.step().applied) << "the scale is not the one to test";
    }
    Result mine;
    add_masters(engine, mine);
    if (group.rank() == 0) expected = mine.masters;
  });
  const Shape shape = {.stages = 2, .micro_batches = 1};
  for (const Kind kind : {Kind::one_f_one_b, Kind::zb_h1}) {
    ThreadMeetings meetings;
    options.mesh.pipe = 2;
    run_ranks(2 * kData, [&](comm::Group& group) {
      ThreadGroups maker(meetings, group.rank());
      Chain model(std::vector<int>{group.rank() / kData});
      Engine engine(model, options, {.group = {group, maker}});
      HalfLossStage stage(engine, model, shape);
      pipeline::Executor executor(make_schedule(kind, shape),
                                  engine.mesh().over(layout::Axis::pipe), stage, at::kCPU);
      for (int step = 0; step < kSteps; ++step) {
        executor.run();
        EXPECT_TRUE(stage.last_step().applied);
      }
      Result mine;
      add_masters(engine, mine);
      for (const auto& [name, value] : mine.masters) {
        EXPECT_TRUE(at::equal(value, expected.at(name))) << to_string(kind) << ": " << name;
      }
    });
  }
}

// How many gradients of its parameters had come when each forward began.
class CountingStage final : public SeededStage {
 public:
  CountingStage(Engine& engine, Chain& model, const Shape& shape, int data_rank)
      : SeededStage(engine, shape, data_rank), model_(model) {
    for (at::Tensor& param : model->parameters()) {
      param.register_hook([this](const at::Tensor&) { ++arrived_; });
    }
  }
  Tensors forward(int, const Tensors& inputs) override {
    before_forward.push_back(arrived_);
    return {model_->blocks[0](inputs[0])};
  }
  std::vector<int> before_forward;

 private:
  Chain& model_;
  int arrived_ = 0;
};

// The last stage of zb-h1 sends the gradients of two micro-batches before those of its weights.
TEST(PipelineStage, GradientsOfWeightsWaitWhereTheBackwardIsInHalves) {
  const Shape shape = {.stages = 2, .micro_batches = 3};
  for (const bool halves : {true, false}) {
    for (const int zero : {2, 3}) {
      engine::Options options = options_of(zero, 3);
      options.mesh.pipe = 2;
      ThreadMeetings meetings;
      run_ranks(2 * kData, [&](comm::Group& group) {
        ThreadGroups maker(meetings, group.rank());
        Chain model(std::vector<int>{group.rank() / kData});
        Engine engine(model, options, {.group = {group, maker}});
        CountingStage stage(engine, model, shape, group.rank() % kData);
        if (!halves) stage.keep_backwards_whole();
        comm::Group& pipe = engine.mesh().over(layout::Axis::pipe);
        pipeline::Executor(make_schedule(Kind::zb_h1, shape), pipe, stage, at::kCPU).run();
        ASSERT_EQ(stage.before_forward.size(), 3u);
        // Stage 3 releases parameters between uses: there it is not split.
        if (pipe.rank() == 0) return;
        EXPECT_EQ(stage.before_forward[1] == 0, halves && zero == 2);
      });
    }
  }
}

TEST(PipelineStage, TheStageThatOverflowsIsNamedOnTheOthers) {
  const Shape shape = {.stages = 2, .micro_batches = 1};
  on_mesh(options_of(0, 1), shape, [&](Engine& engine, ChainStage& stage, comm::Group& pipe, int) {
    pipeline::Executor executor(make_schedule(Kind::gpipe, shape), pipe, stage, at::kCPU);
    executor.run();
    EXPECT_TRUE(stage.last_step().applied);
    // By hand: only the second stage has one that is not finite.
    engine.set_gradient(pipe.rank() == 0 ? "block0.up.weight" : "block1.up.weight",
                        at::full({2 * kWidth + 1, kWidth}, pipe.rank() == 0 ? 1.0 : std::nan("")));
    const engine::StepReport report = engine.step(true);
    EXPECT_FALSE(report.applied);
    EXPECT_EQ(report.non_finite, pipe.rank() == 0 ? "a parameter of stage 1" : "block1.up.weight");
  });
}

TEST(PipelineStage, RefusesAnotherNumberOfMicroBatches) {
  try {
    on_mesh(options_of(1, 3), {.stages = 2, .micro_batches = 4},
            [](Engine&, ChainStage&, comm::Group&, int) {});
    FAIL() << "the average would be wrong";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("4 micro-batches per step, but the engine accumulates 3"));
  }
}

TEST(PipelineStage, RefusesStagesThatAreConfiguredDifferently) {
  try {
    ThreadMeetings meetings;
    run_ranks(2, [&](comm::Group& all) {
      ThreadGroups maker(meetings, all.rank());
      engine::Options options = options_of(1, 1);
      options.mesh.pipe = 2;
      options.gradient_clipping = all.rank() + 1;
      Chain model(std::vector<int>{all.rank()});
      Engine engine(model, options, {.group = {all, maker}});
    });
    FAIL() << "they would clip differently";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("gradient_clipping is 1"));
  }
}

TEST(PipelineStage, TellsWhatStage3GathersForEveryMicroBatch) {
  const Shape shape = {.stages = 2, .micro_batches = 1};
  for (const int zero : {1, 3}) {
    on_mesh(options_of(zero, 1), shape, [&](Engine& engine, ChainStage&, comm::Group&, int) {
      const std::string text = engine.describe();
      EXPECT_THAT(text, HasSubstr("pipe 2"));
      EXPECT_EQ(text.find("every micro-batch gathers") != std::string::npos, zero == 3) << text;
    });
  }
}

TEST(PipelineStage, RefusesRanksThatAreNoMultipleOfTheStages) {
  engine::Options options = options_of(1, 1);
  options.mesh.pipe = 2;
  Chain model(std::vector<int>{0});
  comm::Group alone(comm::make_loopback(comm::make_loopback_hub(1), 0));
  try {
    Engine engine(model, options, {.group = &alone});
    FAIL() << "one rank is no pipeline";
  } catch (const ConfigError& error) {
    EXPECT_THAT(
        error.what(),
        HasSubstr("a mesh of 2 (pipe) x 1 (sequence) x 1 (tensor) has no place for 1 rank"));
  }
}

}  // namespace
}  // namespace capstan::test

// Weights that the first and the last stage of a pipeline share: one parameter to the optimizer,
// the norm and checkpoints.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "tests/engine/chain_stages.h"
#include "tests/support/temp_folder.h"

namespace capstan::test {
namespace {

using testing::HasSubstr;

// The shared block, the others in a row, and the shared block once more; or what a stage has of it.
struct TiedChainImpl : torch::nn::Module {
  TiedChainImpl(bool has_shared, const std::vector<int>& others) {
    if (has_shared) {
      shared = register_module("shared", nn::Unit<BlockImpl>(kWidth));
      fill(*shared, 7);
    }
    for (const int part : others) {
      blocks.push_back(
          register_module("block" + std::to_string(part), nn::Unit<BlockImpl>(kWidth)));
      fill(*blocks.back(), static_cast<std::uint64_t>(31 + part));
    }
  }
  nn::Unit<BlockImpl> shared{nullptr};
  std::vector<nn::Unit<BlockImpl>> blocks;
};
TORCH_MODULE(TiedChain);

struct TiedPart final : SeededStage {
  TiedPart(Engine& engine, const Shape& shape, TiedChain& model, int stage, int data_rank)
      : SeededStage(engine, shape, data_rank),
        model(model),
        first(stage == 0),
        last(stage == shape.stages - 1) {}
  Tensors forward(int, const Tensors& inputs) override {
    at::Tensor x = inputs[0];
    if (first) x = model->shared(x);
    for (auto& block : model->blocks) x = block(x);
    if (last) x = model->shared(x);
    return {x};
  }
  TiedChain& model;
  bool first;
  bool last;
};

constexpr int kOthers = 6;

struct Run {
  int stages = 2;
  int data = 1;
  int begin = 0;
  int end = kSteps;
  std::filesystem::path from = {};
  std::filesystem::path to = {};
  Kind kind = Kind::one_f_one_b;
};

// Of all stages; the copies of what they share must be equal to the last bit.
Result train(engine::Options options, const Run& run) {
  options.mesh.pipe = run.stages;
  ThreadMeetings meetings;
  Result result;
  std::mutex mutex;
  run_ranks(run.stages * run.data, [&](comm::Group& group) {
    ThreadGroups maker(meetings, group.rank());
    const int stage = group.rank() / run.data;
    const int per_stage = kOthers / run.stages;
    std::vector<int> others;
    for (int i = 0; i < per_stage; ++i) others.push_back(stage * per_stage + i);
    const bool has_shared = stage == 0 || stage == run.stages - 1;
    TiedChain model(has_shared, others);
    engine::Parts parts{.group = {group, maker}};
    if (run.stages > 1) {
      engine::SharedWeights shared{.tie = {"shared", {0, run.stages - 1}}, .params = {}};
      for (const auto& named : model->named_parameters()) {
        if (named.key().starts_with("shared.")) shared.params.push_back(named.key());
      }
      parts.ties = {shared};
      if (stage > 0 && has_shared) fill(*model->shared, 99);  // the first stage's values count
    }
    Engine engine(model, options, std::move(parts));
    if (!run.from.empty()) engine.load_checkpoint(run.from);
    const Shape shape = {.stages = run.stages,
                         .micro_batches = static_cast<int>(options.batch.accumulation_steps)};
    TiedPart part(engine, shape, model, stage, group.rank() % run.data);
    pipeline::Executor executor(make_schedule(run.kind, shape),
                                engine.mesh().over(layout::Axis::pipe), part, at::kCPU);
    Result mine;
    for (part.now = run.begin; part.now < run.end; ++part.now) {
      executor.run();
      mine.reports.push_back(part.last_step());
    }
    if (!run.to.empty()) engine.save_checkpoint(run.to);
    add_masters(engine, mine);
    if (group.rank() % run.data != 0) return;
    const std::lock_guard lock(mutex);
    for (auto& [name, value] : mine.masters) {
      const auto [known, is_new] = result.masters.emplace(name, value);
      EXPECT_TRUE(is_new || at::equal(known->second, value)) << name << " of stage " << stage;
    }
    if (stage == 0) result.reports = mine.reports;
  });
  return result;
}

engine::Options tied_options(int zero, int micro_batches, DType dtype = DType::fp32) {
  engine::Options options = options_of(zero, micro_batches, dtype);
  options.gradient_clipping = 0;
  return options;
}

void expect_bits(const Result& actual, const Result& expected, const std::string& what) {
  ASSERT_EQ(actual.masters.size(), expected.masters.size()) << what;
  for (const auto& [name, value] : expected.masters) {
    EXPECT_TRUE(at::equal(actual.masters.at(name), value)) << what << ": " << name;
  }
}

// One micro-batch on one rank: a sum of two, in either order.
TEST(TiedStages, HaveTheBitsOfOneParameterWhereTheSumHasTwoOperands) {
  for (const int zero : {0, 1, 2, 3}) {
    const engine::Options options = tied_options(zero, 1);
    const Result expected = train(options, {.stages = 1});
    for (const int stages : {2, 3}) {
      expect_bits(train(options, {.stages = stages}), expected,
                  fmt::format("stage {}, {} stages", zero, stages));
    }
  }
}

// Of several micro-batches and ranks each stage's are summed first, then those of the stages.
TEST(TiedStages, AreWithinRoundingOfOneParameterAndEqualAtEveryDepthAndSchedule) {
  for (const int zero : {0, 2, 3}) {
    const engine::Options options = tied_options(zero, 4);
    const Result whole = train(options, {.stages = 1, .data = 2});
    const Result expected = train(options, {.stages = 2, .data = 2});
    for (const auto& [name, value] : whole.masters) {
      // After Adam: a gradient near zero may change sign, so a step's length is the bound.
      EXPECT_LE((expected.masters.at(name) - value).abs().max().item<double>(),
                2 * kSteps * options.optimizer->hyper.lr)
          << name;
      EXPECT_LE((expected.masters.at(name) - value).abs().mean().item<double>(),
                1e-2 * options.optimizer->hyper.lr)
          << name;
    }
    for (std::size_t i = 0; i < whole.reports.size(); ++i) {
      EXPECT_NEAR(expected.reports[i].grad_norm, whole.reports[i].grad_norm,
                  1e-4 * whole.reports[i].grad_norm);
    }
    for (const Kind kind : {Kind::gpipe, Kind::one_f_one_b, Kind::zb_h1}) {
      expect_bits(train(options, {.stages = 3, .data = 2, .kind = kind}), expected,
                  fmt::format("stage {}", zero));
    }
  }
}

TEST(TiedStages, CountOnceInTheNorm) {
  engine::Options options = tied_options(1, 1);
  options.gradient_clipping = 1e9;  // measured, not clipped
  const Result expected = train(options, {.stages = 1, .end = 1});
  const Result actual = train(options, {.stages = 3, .end = 1});
  EXPECT_NEAR(actual.reports[0].grad_norm, expected.reports[0].grad_norm,
              1e-12 * expected.reports[0].grad_norm);
}

TEST(TiedStages, AreOneParameterToLambToo) {
  engine::Options options = tied_options(1, 1);
  options.optimizer->kind = optim::Kind::lamb;
  expect_bits(train(options, {.stages = 3}), train(options, {.stages = 1}), "lamb");
}

TEST(TiedStages, MayBeOffloadedWithLateAndEarlyUpdates) {
  for (const auto early : {store::EarlyUpdates::never, store::EarlyUpdates::always}) {
    engine::Options options = tied_options(2, 2);
    const Result expected = train(options, {.stages = 2, .data = 2});
    options.store.optimizer.placement = store::Placement::host;
    options.store.optimizer.early_updates = early;
    expect_bits(train(options, {.stages = 2, .data = 2}), expected, "offloaded");
  }
}

TEST(TiedStages, AreOneTensorOfACheckpoint) {
  const engine::Options options = tied_options(1, 1);
  const Result expected = train(options, {.stages = 1});
  const TempFolder folder;
  train(options, {.stages = 3, .end = 2, .to = folder.path()});
  for (const int stages : {1, 2}) {
    expect_bits(train(options, {.stages = stages, .begin = 2, .from = folder.path()}), expected,
                fmt::format("{} stages", stages));
  }
}

TEST(TiedStages, MustBeAlike) {
  engine::Options options = tied_options(1, 1);
  options.mesh.pipe = 2;
  ThreadMeetings meetings;
  try {
    run_ranks(2, [&](comm::Group& group) {
      ThreadGroups maker(meetings, group.rank());
      Chain model(std::vector<int>{group.rank()});
      const std::string name = group.rank() == 0 ? "block0.up.weight" : "block1.down.weight";
      Engine engine(model, options,
                    {.group = {group, maker}, .ties = {{.tie = {"w", {0, 1}}, .params = {name}}}});
    });
    FAIL() << "a sum of tensors of other shapes";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), HasSubstr("the stages 0, 1 share weights that are not alike"));
  }
}

}  // namespace
}  // namespace capstan::test
